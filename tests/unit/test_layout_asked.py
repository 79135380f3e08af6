"""Other degrees for a live run: what its controller answers or refuses, and the next start."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from control_drive import Drive, of, records

from remesh.actors.controller.layout_wishes import FreeMemory, LayoutWishes
from remesh.actors.jobs.earlier_wish import with_bits, with_wish
from remesh.actors.orders import RunSpec
from remesh.orchestrator.accounts.view import view_of
from remesh.orchestrator.control.memory.carrying import carried_of
from remesh.orchestrator.control.words import commands as cmd
from remesh.orchestrator.control.words import events as ev
from remesh.orchestrator.control.words.carried import Carried
from remesh.orchestrator.job.job import load_job
from remesh.orchestrator.plan.planner import ladder_of
from remesh.orchestrator.plan.wish import wish_of, wished_ladder
from remesh.orchestrator.user_errors import UserError

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
NOT_KNOWN = FreeMemory()
KEYS = "parallel.tp was 1 and is 2"


class Asked:
    """The run of the tiny job on two nodes with two workers each, which is asked for degrees."""

    def __init__(self, *overrides, memory=NOT_KNOWN, nodes=(("head", 2), ("b", 2))):
        self.job = load_job(TINY, overrides)
        ladder = ladder_of(self.job)
        self.drive = Drive(nodes=nodes, ladder=ladder, spares=0)
        self.wishes = LayoutWishes(
            self.drive.controller,
            threading.Lock(),
            self.drive.do,
            spec_of(self.job, ladder.highest.workers),
            lambda: memory,
        )

    def running(self, last=10):
        self.drive.ready()
        self.drive.train(last)
        return self

    def ask(self, layout):
        return self.wishes.ask({"layout": layout})["text"]

    def refusal(self, layout):
        """Why it is refused, with nothing changed."""
        before = self.seen()
        with pytest.raises(UserError) as caught:
            self.ask(layout)
        assert self.seen() == before
        return str(caught.value)

    def seen(self):
        state = self.drive.state
        return state.next_ladder, state.asked_layout, len(self.drive.commands)

    def go_over(self, step):
        self.drive.park(step, drained=True, records=records(step, step, 1.0))
        self.drive.train()
        return str(self.drive.state.current.layout)


def spec_of(job, most):
    return RunSpec(
        run="r",
        job=job,
        folder="",
        data_digest="",
        fingerprint={},
        start=1,
        incarnation=1,
        max_members=most,
        faults=(),
        driver_lease_s=20.0,
    )


def said(drive):
    return [command.text for command in of(cmd.Announce, drive.commands)]


def test_a_wish_is_answered_with_both_meshes_and_the_keys_of_the_bits_that_change():
    asked = Asked().running()
    answer = asked.ask("tp=2")
    assert answer == (
        f"going over from dp=4 to dp=2 tp=2 at the next step boundary; the bits change: {KEYS}"
    )
    assert [drain.save for drain in of(cmd.Drain, asked.drive.commands)] == [False]
    assert asked.go_over(11) == "dp=2 tp=2"
    assert asked.drive.state.current.reason.endswith(
        "going over to other meshes: somebody asked for tp=2"
    )
    assert f"the bits change from here on: {KEYS}" in said(asked.drive)


def test_what_was_asked_for_is_seen_and_given_back_with_auto():
    asked = Asked().running()
    asked.ask("tp=2")
    asked.go_over(11)
    assert view_of(asked.drive.controller).asked_layout == "tp=2"
    assert asked.ask("tp=2") == "it is asked for tp=2 already"
    assert asked.ask("auto").startswith("going over from dp=2 tp=2 to dp=4 at the next step")
    assert asked.go_over(12) == "dp=4"
    assert view_of(asked.drive.controller).asked_layout == ""
    assert asked.ask("auto") == "it is asked for nothing but what the job says already"


def test_a_mesh_that_has_the_degrees_stays_as_it_is():
    asked = Asked().running()
    assert asked.ask("tp=1") == "it has dp=4 and keeps to it"
    assert of(cmd.Drain, asked.drive.commands) == []


def test_a_loss_leaves_fewer_replicas_of_the_same_degrees_and_they_come_back():
    asked = Asked().running()
    asked.ask("tp=2")
    asked.go_over(11)
    asked.drive.lose(asked.drive.members[0])
    asked.drive.park(11)
    assert str(asked.drive.state.current.layout) == "tp=2"
    asked.drive.train(12)
    asked.drive.ready()
    assert asked.go_over(13) == "dp=2 tp=2"


def test_a_run_without_a_mesh_is_told_what_its_first_one_will_be():
    asked = Asked()
    assert asked.ask("pp=2").startswith("the first mesh is dp=2 pp=2")
    asked.drive.ready()
    assert str(asked.drive.state.current.layout) == "dp=2 pp=2"


def test_degrees_for_which_there_are_no_workers_are_refused_with_both_numbers():
    asked = Asked("elastic.max_workers=12").running()
    assert asked.refusal("tp=4") == (
        "tp=4 takes more workers than there is room for: have 4 workers on 2 nodes, need 4 in tp "
        "groups of 4 on one node each; add nodes, or ask for less"
    )
    assert "have 4 workers on 2 nodes, need 8; add nodes" in asked.refusal("dp=4,pp=2")


def test_places_that_no_agent_has_asked_its_node_for_do_not_count():
    asked = Asked("parallel.dp=1", nodes=(("head", 4),)).running()
    assert "have 2 workers on 1 node, need 4" in asked.refusal("tp=4")


def test_degrees_that_the_model_does_not_allow_are_refused_as_by_remesh_plan():
    assert (
        Asked()
        .running()
        .refusal("tp=3")
        .startswith("parallel.tp = 3 does not divide model.num_heads = 4; use")
    )


def test_a_mesh_for_which_memory_is_short_is_refused_and_that_of_the_present_one_counts():
    short = FreeMemory(here=0)
    refusal = Asked("parallel.dp=1", memory=short).running().refusal("tp=2")
    assert "this machine has 0 bytes free for 2 workers, beside what the present" in refusal
    assert Asked(memory=short).running().ask("tp=2")  # each has less to hold
    assert "the largest node of the cluster has 1 MB" in Asked(
        memory=FreeMemory(nodes=(1 << 20,))
    ).running().refusal("tp=2")


@pytest.mark.parametrize("layout", ["tp=many", "", None])
def test_what_names_no_degrees_is_refused(layout):
    assert "expected degrees of dp, pp, cp, ep, tp" in Asked().running().refusal(layout)


def test_a_run_that_stops_takes_no_wish():
    asked = Asked().running()
    asked.drive.do(ev.StopRequested(reason="enough"))
    assert asked.refusal("tp=2").startswith("the run is over, or about to be: ")


def held(job, carried, within=lambda ladder: ladder):
    return with_wish(job, carried, ladder_of(job), within)


def test_the_next_start_of_the_same_job_keeps_to_a_wish_and_says_how_to_give_it_back():
    asked = Asked().running()
    asked.ask("tp=2")
    carried = carried_of(asked.drive.state)
    taken = held(asked.job, carried)
    assert taken.ladder == wished_ladder(asked.job, carried.layout)
    assert taken.notices == (
        "it goes on with tp=2, which was asked for; remesh scale --layout auto gives it back",
    )
    again = Drive(ladder=taken.ladder, carried=taken.carried, start=2)
    again.ready()
    assert str(again.state.current.layout) == "dp=2 tp=2"
    assert view_of(again.controller).asked_layout == "tp=2"


def test_a_job_that_says_other_degrees_by_now_has_the_newer_word():
    job = load_job(TINY)
    carried = Carried(layout=wish_of("tp=2", job))
    newer = load_job(TINY, ["parallel.pp=2", "elastic.pp=[1]"])
    taken = held(newer, carried)
    assert (taken.ladder, taken.carried.layout) == (ladder_of(newer), None)
    (notice,) = taken.notices
    assert notice == (
        "tp=2, which was asked for, holds no longer: the job says dp=auto pp=2 cp=1 ep=1 tp=1, "
        "and said dp=auto pp=1 cp=1 ep=1 tp=1"
    )


def test_a_wish_for_which_a_start_has_no_room_is_dropped_with_the_reason():
    job = load_job(TINY)

    def within(_):
        raise UserError("no room")

    taken = held(job, Carried(failures=2, layout=wish_of("tp=2", job)), within)
    assert (taken.ladder, taken.carried) == (ladder_of(job), Carried(failures=2))
    assert taken.notices == ("tp=2, which was asked for, holds no longer: no room",)


def test_other_degrees_than_those_of_the_start_before_are_announced_with_the_first_mesh():
    asked = Asked().running()
    asked.ask("tp=2")
    asked.go_over(11)
    carried = carried_of(asked.drive.state)
    change, handed_on = with_bits(asked.job, asked.job.bits, replace(carried, layout=None))
    assert (change, handed_on.bit_key) == (None, carried.bit_key)
    again = Drive(ladder=ladder_of(asked.job), carried=handed_on, start=2)
    again.ready()
    assert "the bits change from here on: parallel.tp was 2 and is 1" in said(again)
    same = Drive(ladder=wished_ladder(asked.job, carried.layout), carried=handed_on, start=2)
    same.ready()
    assert not [text for text in said(same) if "the bits change" in text]


def test_other_keys_of_the_bits_are_told_by_the_start_alone():
    asked = Asked().running()
    other = load_job(TINY, ["train.threads=2", "parallel.tp=2", "elastic.max_workers=8"])
    carried = carried_of(asked.drive.state)
    change, handed_on = with_bits(other, asked.job.bits, carried)
    assert change == "the bits change from here on: train.threads was 1 and is 2"
    assert handed_on.bit_key == other.bit_key.replace("tp=2", "tp=1")
    bare = with_bits(other, asked.job.bits, Carried())  # without a journal all is told here
    assert bare[0].endswith("train.threads was 1 and is 2, parallel.tp was 1 and is 2")
    assert with_bits(other, None, carried)[0] is None


def test_a_wish_outlives_its_controller():
    asked = Asked().running()
    asked.ask("tp=2")
    asked.drive.do(ev.ControllerRestarted(down_s=1.0))
    assert asked.go_over(11) == "dp=2 tp=2"
    assert replace(asked.drive.state.asked_layout, beside="") == replace(
        wish_of("tp=2", asked.job), beside=""
    )
