"""Words that users bring along from other trainers, and job files that are no TOML."""

from pathlib import Path

import pytest

from remesh.orchestrator.job.foreign_words import SYNONYMS
from remesh.orchestrator.job.job import Job, load_job, parse_job
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        load_job(TINY, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("train.learning_rate", "train.lr"),
        ("train.batch_size", "train.global_batch"),
        ("train.lr_schedule", "train.lr_curve"),
        ("train.lr_scheduler", "train.lr_curve"),
        ("train.max_steps", "train.steps"),
        ("model.num_hidden_layers", "model.num_layers"),
        ("train.epochs", "train.steps"),
        ("model.hidden_size", "model.width"),
        ("model.num_attention_heads", "model.num_heads"),
        ("model.intermediate_size", "model.ffn_width"),
        ("train.max_grad_norm", "train.clip"),
        ("train.gradient_checkpointing", "train.recompute"),
        ("checkpoint.save_steps", "checkpoint.every"),
        ("parallel.tensor_parallel_size", "parallel.tp"),
        ("data.hidden_size", "model.width"),
        ("parallel.pipeline_model_parallel_size", "parallel.pp"),
        ("parallel.virtual_pipeline_model_parallel_size", "parallel.virtual_stages"),
        ("parallel.pipeline_schedule", "parallel.schedule"),
        ("model.decoder_first_pipeline_num_layers", "parallel.layers"),
        ("train.learning-rate", "train.lr"),
        ("train.batchSize", "train.global_batch"),
    ],
)
def test_a_word_of_another_trainer_is_known(word, key):
    """user 1.1: synonyms get "did you mean"."""
    assert f"did you mean {key}" in refusal(f"{word}=1")


def test_a_key_without_a_table_is_known_too():
    with pytest.raises(UserError, match=r"^j: learning_rate: .*; did you mean train\.lr\?$"):
        parse_job(f"learning_rate = 1\n{TINY.read_text()}", name="j")
    with pytest.raises(UserError, match=r"^j: steps: .*; did you mean train\.steps\?$"):
        parse_job(f"steps = 1\n{TINY.read_text()}", name="j")


def test_the_optimizer_cannot_be_chosen_and_its_keys_are_named():
    assert "it is AdamW always, set by train.lr, train.beta1" in refusal("train.optimizer=adam")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"train": {"steps": 80}}', "JSON"),
        ("train:\n  steps: 80\n", "YAML"),
        ("---\n# ours\nsteps: 80\n", "YAML"),
        ("- steps: 80\n", "YAML"),
    ],
)
def test_a_job_file_of_another_format_is_named(text, kind):
    with pytest.raises(UserError) as caught:
        parse_job(text, name="j")
    assert str(caught.value).startswith(f"j: a job file is TOML, and this is {kind}; write ")
    assert "\n" not in str(caught.value)


def test_a_list_that_is_expected_is_shown():
    text = TINY.read_text().replace("[data]", '[data]\nskip = "30..35"')
    with pytest.raises(UserError, match=r'expected a list, such as \["30\.\.35"\]$'):
        parse_job(text, name="j")


def test_a_synonym_is_no_key_itself_and_means_one():
    keys = {
        f"{table}.{name}"
        for table, field in Job.model_fields.items()
        for name in field.annotation.model_fields
    }
    assert set(SYNONYMS.values()) <= keys
    assert not {key.partition(".")[2] for key in keys} & SYNONYMS.keys()
