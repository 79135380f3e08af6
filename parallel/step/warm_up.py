"""A first step for nothing: a process's first backward takes ten times as long as the next."""

from dataclasses import replace

from remesh.parallel.groups.fence import GenerationFence
from remesh.parallel.groups.mesh import Mesh
from remesh.parallel.spec import EngineSpec, ZeroSpec
from remesh.parallel.step.engine import Engine
from remesh.parallel.step.work import SampleSums, TokenBuffer, Work


def warm_up(spec: EngineSpec) -> None:
    """Trains one microbatch of a model of one layer, alone, and forgets it.

    Cost: memory for one layer, the embedding and the head.
    """
    small = replace(
        spec,
        model=replace(spec.model, num_layers=1, num_dense_layers=0),
        zero=ZeroSpec(),
        num_leaves=1,
        microbatches_per_leaf=1,
    )
    engine, mesh = Engine(small), Mesh.alone()
    engine.form(mesh)
    engine.reset()
    engine.step(
        1,
        Work(
            mesh=mesh,
            fence=GenerationFence(),
            generation=0,
            fill=_zeros,
            write_digest=str,
            stamp=lambda *_: None,
        ),
    )


def _zeros(_: int, out: TokenBuffer) -> SampleSums:
    out[:] = 0
    return 0, 0, len(out)
