"""A job file that trains nothing much: what commands are told about checkpoints."""

JOB = """
[job]
name = "small"
[model]
num_layers = 1
width = 8
num_heads = 2
num_kv_heads = 1
ffn_width = 12
[data]
dir = "data"
source = "text.txt"
[train]
steps = 4
global_batch = 2
microbatch = 1
seq_len = 16
[elastic]
max_workers = 2
"""
