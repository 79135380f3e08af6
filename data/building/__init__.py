"""Builds of datasets: text in, shards of rows and a manifest out."""
