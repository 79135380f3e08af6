"""What users bring along from other trainers: words for keys, and job files that are no TOML."""

import json
import re

_KEYS = {
    "job.name": "run_name experiment experiment_name project",
    "job.seed": "random_seed manual_seed data_seed",
    "model.num_layers": "n_layers n_layer num_hidden_layers depth num_blocks",
    "model.width": "hidden_size hidden_dim d_model n_embd dim embed_dim model_dim embedding_size",
    "model.num_heads": "n_heads n_head heads num_attention_heads attention_heads",
    "model.num_kv_heads": "n_kv_heads num_key_value_heads kv_heads num_query_groups",
    "model.ffn_width": (
        "intermediate_size ffn_hidden_size ffn_dim d_ff mlp_dim ffn_size feedforward_dim"
    ),
    "model.vocab_size": "vocab n_vocab vocabulary vocabulary_size",
    "model.rope_theta": "rope_base rotary_base",
    "model.norm_eps": "rms_norm_eps layer_norm_eps layernorm_epsilon",
    "model.positions": "position_embedding position_embedding_type",
    "model.activation": "hidden_act activation_function act",
    "model.tied": "tie_word_embeddings tie_embeddings tie_weights weight_tying",
    "data.source": "dataset dataset_path dataset_name data_path train_data train_file",
    "data.dir": "data_dir dataset_dir",
    "train.steps": (
        "max_steps num_steps train_steps total_steps training_steps iterations max_iters "
        "num_iterations train_iters epochs num_epochs max_epochs num_train_epochs"
    ),
    "train.global_batch": "batch_size global_batch_size train_batch_size bs batch",
    "train.microbatch": (
        "micro_batch_size microbatch_size micro_batch per_device_batch_size "
        "per_device_train_batch_size local_batch_size train_micro_batch_size_per_gpu"
    ),
    "train.seq_len": (
        "sequence_length seq_length max_seq_len max_seq_length context_length block_size "
        "max_length ctx_len context max_position_embeddings"
    ),
    "train.lr": "learning_rate max_lr peak_lr base_lr lr_max",
    "train.min_lr": "lr_min end_lr final_lr min_learning_rate",
    "train.lr_curve": (
        "lr_schedule lr_scheduler lr_scheduler_type scheduler lr_decay_style lr_decay"
    ),
    "train.lr_steps": "lr_decay_steps lr_decay_iters decay_steps",
    "train.warmup_steps": (
        "warmup num_warmup_steps warmup_iters lr_warmup_steps lr_warmup_iters warmup_ratio"
    ),
    "train.weight_decay": "wd decay l2",
    "train.beta1": "adam_beta1 betas",
    "train.beta2": "adam_beta2",
    "train.eps": "adam_eps adam_epsilon epsilon",
    "train.clip": (
        "grad_clip clip_grad gradient_clipping max_grad_norm max_norm clip_norm clip_grad_norm "
        "gradient_clip_val"
    ),
    "train.threads": "num_threads omp_num_threads",
    "train.dtype": "precision mixed_precision torch_dtype param_dtype bf16 fp16",
    "train.grad_dtype": "reduce_dtype",
    "train.recompute": (
        "gradient_checkpointing activation_checkpointing activation_checkpoint "
        "recompute_granularity remat"
    ),
    "parallel.dp": "data_parallel data_parallel_size dp_size data_parallel_degree num_replicas",
    "parallel.tp": (
        "tensor_parallel tensor_parallel_size tp_size tensor_parallel_degree "
        "tensor_model_parallel_size"
    ),
    "parallel.pp": (
        "pipeline_parallel pipeline_parallel_size pp_size pipeline_parallel_degree "
        "pipeline_model_parallel_size"
    ),
    "parallel.schedule": (
        "pipeline_schedule pp_schedule pipeline_parallel_schedule pipeline_schedule_type"
    ),
    "parallel.virtual_stages": (
        "virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size vpp_size vpp "
        "num_virtual_stages_per_pipeline_rank num_layers_per_virtual_pipeline_stage "
        "num_model_chunks"
    ),
    "parallel.layers": (
        "pipeline_model_parallel_layout decoder_first_pipeline_num_layers "
        "decoder_last_pipeline_num_layers num_layers_in_first_pipeline_stage "
        "num_layers_in_last_pipeline_stage pipeline_parallel_layers_per_stage "
        "pipeline_parallel_split_points"
    ),
    "parallel.cp": "context_parallel context_parallel_size cp_size context_parallel_degree",
    "parallel.ep": "expert_parallel expert_parallel_size ep_size expert_parallel_degree",
    "parallel.sequence": "sequence_parallel",
    "zero.stage": "zero_stage zero_optimization fsdp sharding_strategy",
    "zero.bucket_bytes": "bucket_size reduce_bucket_size bucket_cap_mb",
    "checkpoint.dir": "output_dir save_dir run_dir out_dir",
    "checkpoint.url": "save_path remote_path bucket",
    "checkpoint.every": (
        "save_steps save_every save_interval checkpoint_interval checkpoint_every interval"
    ),
    "checkpoint.keep": "save_total_limit keep_last keep_last_n max_to_keep keep_latest_k",
    "elastic.max_workers": "num_workers max_world_size world_size num_gpus",
    "elastic.min_workers": "min_world_size",
    "elastic.max_failures": "max_restarts num_retries",
}
SYNONYMS = {word: key for key, words in _KEYS.items() for word in words.split()}
OPTIMIZER = (
    "it is AdamW always, set by train.lr, train.beta1, train.beta2, train.eps and "
    "train.weight_decay"
)
_OPTIMIZER_WORDS = {"optimizer", "optim", "optimizer_type", "optimizer_name"}

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_YAML_LINE = re.compile(r"(?:- )?[A-Za-z_][\w.-]*:(?:\s|$)|---\s*$")


def meant_by(word: str) -> str | None:
    """What to say of a word that other trainers know, for a key or a table; None of others."""
    plain = _CAPITAL.sub("_", word).lower().replace("-", "_")
    if plain in _OPTIMIZER_WORDS:
        return OPTIMIZER
    key = SYNONYMS.get(plain)
    return key and f"did you mean {key}?"


def other_format(text: str) -> str | None:
    """What a text that is no TOML is instead, such as "JSON"; None where that is not to be seen."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if lines and lines[0].lstrip().startswith(("{", "[")) and _is_json(text):
        return "JSON"
    return "YAML" if lines and _YAML_LINE.match(lines[0]) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
