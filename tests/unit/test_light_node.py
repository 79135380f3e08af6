"""A raylet of a local cluster gets stand-ins for its agents, and nodes wait for their head."""

import shlex
import socket
import subprocess
import threading

from remesh.actors.cluster.light_node import STAND_IN, lightened, listens, wait_for

NODE = "ab" * 28


def raylet(folder):
    """As Ray starts one, shortened."""
    return [
        "/ray/raylet",
        f"--session_dir={folder}",
        f"--node_id={NODE}",
        "--python_worker_command=python worker.py --node-id=x",
        "--num_prestart_python_workers=8",
        "--dashboard_agent_command=python agent.py --grpc-port=0",
        "--runtime_env_agent_command=python main.py",
    ]


def agents(folder):
    return [shlex.split(word.partition("=")[2]) for word in lightened(raylet(folder))[-2:]]


def test_its_own_words_stay(tmp_path):
    assert lightened(raylet(tmp_path))[:4] == raylet(tmp_path)[:4]
    assert all(str(STAND_IN) in agent for agent in agents(tmp_path))


def test_no_more_processes_begin_unasked_than_a_run_has_actors(tmp_path):
    for head, num in ((["--head"], 2), ([], 1)):
        begun = [word for word in lightened(raylet(tmp_path) + head) if "prestart" in word]
        assert begun == [f"--num_prestart_python_workers={num}"]


def test_a_stand_in_says_of_each_port_that_it_is_not_there_and_ends_with_its_raylet(tmp_path):
    """The raylet waits for the ports of both; a shell is the raylet here."""
    commands = [shlex.join([*agent, "--more=words"]) for agent in agents(tmp_path)]
    script = " & ".join(commands) + " & echo $(jobs -p); read line"
    with subprocess.Popen(
        ["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        pids = shell.stdout.readline().split()
        names = [
            "metrics_agent_port",
            "metrics_export_port",
            "dashboard_agent_listen_port",
            "runtime_env_agent_port",
        ]
        files = [tmp_path / f"{name}_{NODE}" for name in names]
        while not all(file.exists() for file in files):
            assert shell.poll() is None
        assert [file.read_text() for file in files] == ["-1"] * 4
        assert len(pids) == 2
        shell.stdin.close()
        assert shell.stdout.read() == ""  # closed by the stand-ins too


def test_a_node_waits_until_its_head_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"127.0.0.1:{port}"
    assert not listens(address)
    waited = threading.Thread(target=wait_for, args=(address,))
    waited.start()
    with socket.create_server(("127.0.0.1", port)):
        waited.join()
        assert listens(address)


def test_a_head_that_never_comes_is_left_to_ray_to_tell():
    wait_for("127.0.0.1:9", limit_s=0.0)
