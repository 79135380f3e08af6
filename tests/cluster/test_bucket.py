"""A run whose checkpoints lie in a bucket, on a real S3 server: of one worker, and then of two."""

from place import SHORT
from s3_server import HOST, make_bucket, s3_server

from remesh.actors.storage.storage_url import open_storage


def test_a_run_is_saved_to_a_bucket_and_continued_by_more_workers_with_the_same_bits(
    place, monkeypatch, curve
):
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setitem(place.environment, key, "nobody")
        monkeypatch.setenv(key, "nobody")
    with s3_server() as port:
        make_bucket(port, "bucket")
        url = f"s3://bucket/run?endpoint_override={HOST}:{port}&scheme=http&region=eu-west-1"
        settings = ("--set", f"checkpoint.url={url}", "--set", "checkpoint.dir=runs/bucket")
        outcomes = [
            place.run(
                SHORT, *settings, "--set", f"train.steps={steps}",
                "--nodes", 1, "--workers-per-node", workers,
            )
            for steps, workers in ((20, 1), (30, 2))
        ]  # fmt: skip
        found = open_storage(url).list("")
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[-1].err
    assert "from step 20 with checkpoint step-00000020.gen-1.start-1" in outcomes[1].out
    assert [path for path in found if path.endswith("manifest.json")] == [
        "step-00000020.gen-1.start-1/manifest.json",
        "step-00000030.gen-2.start-2/manifest.json",
    ]
    assert not list((place.root / "runs" / "bucket").glob("step-*"))
    report = outcomes[1].report
    assert [len(life["members"]) for life in report["generations"]] == [1, 2]
    curve.assert_same_bits(report)
