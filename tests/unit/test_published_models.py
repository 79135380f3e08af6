"""Which published models can be imported: as they describe themselves, and as we say."""

from pathlib import Path

import pytest

from remesh.cli.main import main
from remesh.orchestrator.job.tables.model_table import ModelTable
from remesh.parallel.files.convert_config import model_of
from remesh.parallel.plan.errors import CheckpointError

README = (Path(__file__).parents[2] / "README.md").read_text()


def config(kind, *sizes, **more):
    """Layers, width, heads, kv heads, width of the feed-forward net, vocabulary."""
    keys = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    )
    return {"model_type": kind, **dict(zip(keys, sizes, strict=True)), **more}


def llama3(**scaling):
    return {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}


IMPORTED = {
    "Llama-2-7B": config("llama", 32, 4096, 32, 32, 11008, 32000),
    "TinyLlama": config("llama", 22, 2048, 32, 4, 5632, 32000),
    "SmolLM2-135M": config("llama", 30, 576, 9, 3, 1536, 49152, tie_word_embeddings=True),
    "Yi-6B": config("llama", 32, 4096, 32, 4, 11008, 64000, rope_theta=5e6),
}
REFUSED = {
    "Llama-3-8B": (config("llama", 32, 4096, 32, 8, 14336, 128256, rope_theta=5e5), "vocab_size"),
    "Llama-3.2-1B": (config("llama", 16, 2048, 32, 8, 8192, 128256, **llama3()), "vocab_size"),
    "Qwen3-0.6B": (config("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128), "vocab_size"),
    "Qwen3-8B": (config("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128), "vocab_size"),
    "DeepSeek-LLM-7B": (config("llama", 30, 4096, 32, 32, 11008, 102400), "vocab_size"),
    "Mistral-7B": (config("mistral", 32, 4096, 32, 8, 14336, 32768), "model_type = 'mistral'"),
}


@pytest.mark.parametrize("values", IMPORTED.values(), ids=IMPORTED)
def test_the_family_of_llama_2_is_read_and_a_job_may_say_so(values):
    """inputs B5."""
    found = model_of(values, 128)
    table = ModelTable(
        num_layers=found.num_layers,
        width=found.width,
        num_heads=found.num_heads,
        num_kv_heads=found.num_kv_heads,
        ffn_width=found.ffn_width,
        vocab_size=found.vocab_size,
        rope_theta=found.rope_theta,
        tied=found.tied,
    )
    assert table.vocab_size == values["vocab_size"]


@pytest.mark.parametrize(("values", "text"), REFUSED.values(), ids=REFUSED)
def test_what_no_job_can_say_is_refused_by_name_and_not_with_a_table_for_the_job(values, text):
    """inputs B5, parallel A6: the cure was a vocab_size that the job file refuses."""
    with pytest.raises(CheckpointError) as caught:
        model_of(values, 128)
    assert text in str(caught.value)
    assert "Llama 2" in str(caught.value)


def test_the_bounds_of_a_config_json_are_those_of_a_job_file():
    """parallel A6."""
    largest = config("llama", 1, 2**20, 1, 1, 2**20, 2**16)
    found = model_of(largest, 8)
    ModelTable(num_layers=1, width=found.width, num_heads=1, ffn_width=2**20, vocab_size=2**16)
    for key in ("num_hidden_layers", "hidden_size", "intermediate_size"):
        with pytest.raises(CheckpointError, match=rf"{key} = 1048577 .*1,048,576"):
            model_of({**largest, key: 2**20 + 1}, 8)
    with pytest.raises(CheckpointError, match=r"vocab_size = 65537, .*65,536"):
        model_of({**largest, "vocab_size": 2**16 + 1}, 8)


def test_readme_and_help_say_what_can_be_imported_where_they_claim_it(capsys):
    """inputs B5, parallel A6."""
    assert main(["checkpoint", "import", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    row = next(line for line in README.splitlines() if line.startswith("| `remesh checkpoint imp"))
    for text in (shown, row):
        assert "Llama 2" in text
        assert "65,536" in text
    lines = README.splitlines()
    paragraph = next(line for line in lines if line.startswith("What can be imported"))
    for name in ("TinyLlama", "SmolLM2", "Yi-6B", "Llama 3", "Qwen3", "65,536", "rotary"):
        assert name in paragraph
