"""What the short job trains when nothing happens to it: trained once, for all tests."""

from place import SHORT

AT_FIRST = 250  # steps: longer than most runs, so that few have it continued
GLOBAL_BATCH = 12


class Curve:
    """On the shared cluster, in a folder of its own, with these settings besides the job's."""

    def __init__(self, place, cluster, name, *settings, at_first=AT_FIRST):
        self._place = place
        self._place_args = ("--address", cluster.address, "--set", f"checkpoint.dir=runs/{name}")
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._at_first = at_first
        self._losses = []

    def losses(self, num_steps):
        """The losses of the first steps, bit for bit. The learning rate is constant."""
        if len(self._losses) < num_steps:
            self._train(max(num_steps, self._at_first))
        return self._losses[:num_steps]

    def assert_same_bits(self, report):
        """That a report tells of this curve, and of each sample once."""
        assert_whole(report)
        assert report["losses"] == self.losses(len(report["losses"]))

    def _train(self, num_steps):
        steps = ("--set", f"train.steps={num_steps}")
        outcome = self._place.run(SHORT, *self._place_args, *self._settings, *steps)
        assert outcome.code == 0, outcome.err + outcome.out
        assert_whole(outcome.report)
        self._losses = outcome.report["losses"]
        assert len(self._losses) == num_steps


def assert_whole(report):
    """Each step has the samples that the order of the data gives it, by their digests."""
    samples = report["samples"]
    assert (samples["lost"], samples["repeated"]) == (0, 0)
    expected = GLOBAL_BATCH * len(report["losses"])
    assert samples["consumed"] == samples["expected"] == expected
