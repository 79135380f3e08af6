"""Ray's job server over HTTP, with a deadline for every answer.

Ray's own client waits for ever for a server that does not answer, prefers RAY_ADDRESS to the
address that it is given, and loads Ray, which takes a second; the interface is public and small.
"""

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from remesh.actors.jobs.cluster_jobs import STOP_LIMIT_S, RayJob
from remesh.actors.jobs.entry_point import ENTRY_POINT
from remesh.orchestrator.user_errors import RemeshError, UnreachableError, UserError

if TYPE_CHECKING:
    from aiohttp import ClientSession, ClientWebSocketResponse

REACH_LIMIT_S = 5.0
ANSWER_LIMIT_S = 30.0
BEAT_S = 10.0
LAST_LINES = 20
STOPPED_CODE = 143

WORDS = {
    "PENDING": "pending",
    "RUNNING": "running",
    "STOPPED": "stopped",
    "SUCCEEDED": "finished",
    "FAILED": "failed",
}
_READ_ONLY = re.compile(r"node_[0-9a-f]{56}", re.ASCII)


class JobServer:
    """Obeys `Jobs`."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers
        # No proxy of the environment: it reaches another loopback, and would learn the token.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def reach(cls, address: str) -> Self:
        """Raises: UserError if it is no address, UnreachableError if no job server is there."""
        url = address if "://" in address else f"http://{address}"
        if not _is_a_server(url):
            raise UserError(f"--address {address}: expected http://HOST:8265 of a Ray head")
        token = os.environ.get("RAY_AUTH_TOKEN")
        server = cls(url.rstrip("/"), {"Authorization": f"Bearer {token}"} if token else {})
        version = server._call("GET", "/api/version", limit_s=REACH_LIMIT_S)
        if not isinstance(version, dict) or "ray_version" not in version:
            raise UnreachableError(f"--address {address}: what answers there is no Ray job server")
        return server

    def submit(self, ray_id: str, metadata: dict[str, str]) -> None:
        limit = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_LIMIT_S)}
        body = {
            "entrypoint": ENTRY_POINT,
            "submission_id": ray_id,
            "metadata": metadata,
            "runtime_env": {"env_vars": limit},
        }
        self._call("POST", "/api/jobs/", body)

    def list(self) -> list[RayJob]:
        found = self._call("GET", "/api/jobs/")
        return [_job(values) for values in found if values.get("submission_id")]

    def stop(self, ray_id: str) -> None:
        self._call("POST", f"/api/jobs/{quote(ray_id)}/stop")

    def delete(self, ray_id: str) -> None:
        self._read("DELETE", f"/api/jobs/{quote(ray_id)}")

    def last_lines(self, ray_id: str) -> str:
        # Ray wants some node named, and finds the driver's by itself.
        where = f"submission_id={quote(ray_id)}&node_id=-"
        path = f"/api/v0/logs/file?{where}&lines={LAST_LINES}"
        try:
            return self._read("GET", path).decode(errors="replace")
        except RemeshError:  # the driver has not written yet, or its node is gone
            return ""

    def logs(self, ray_id: str) -> str:
        return str(self._call("GET", f"/api/jobs/{quote(ray_id)}/logs")["logs"])

    def tail(self, ray_id: str) -> Iterator[str]:
        with asyncio.Runner() as runner:
            session, socket = runner.run(self._open(ray_id))
            try:
                while (text := runner.run(_next(socket))) is not None:
                    yield text
            finally:
                runner.run(session.close())

    def room(self) -> int | None:
        try:
            return room_of(self._call("GET", "/api/cluster_status"))
        except RemeshError:
            return None

    def _call(
        self, method: str, path: str, body: Any = None, *, limit_s: float = ANSWER_LIMIT_S
    ) -> Any:
        try:
            return json.loads(self._read(method, path, body, limit_s=limit_s))
        except (ValueError, RecursionError) as error:
            raise UnreachableError(f"no Ray job server answers at {self._url}: {error}") from None

    def _read(
        self, method: str, path: str, body: Any = None, *, limit_s: float = ANSWER_LIMIT_S
    ) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - `reach` has looked at the scheme
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=limit_s) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnreachableError(f"no Ray job server answers at {self._url}: {reason}") from None

    def _refusal(self, error: HTTPError) -> RemeshError:
        with error:
            lines = error.read().decode(errors="replace").strip().splitlines() or [error.reason]
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return UserError(
                f"{self._url} wants a token ({error.code}); put the cluster's into RAY_AUTH_TOKEN"
            )
        last = next((line for line in reversed(lines) if len(line) > 1), lines[-1])
        if error.code == HTTPStatus.INTERNAL_SERVER_ERROR:
            return RemeshError(f"the job server at {self._url} failed: {last}")
        return UnreachableError(f"{self._url} answers {error.code}: {last}")

    async def _open(self, ray_id: str) -> "tuple[ClientSession, ClientWebSocketResponse]":
        import aiohttp  # noqa: PLC0415 - 0.3 s, for those who follow a log

        session = aiohttp.ClientSession(headers=self._headers)
        path = f"/api/jobs/{quote(ray_id)}/logs/tail"
        try:
            async with asyncio.timeout(REACH_LIMIT_S):
                # The beats tell a server that is gone from one that has no news.
                return session, await session.ws_connect(self._url + path, heartbeat=BEAT_S)
        except (aiohttp.ClientError, TimeoutError) as error:
            await session.close()
            raise UnreachableError(f"no log comes from {self._url}: {error}") from None


async def _next(socket: "ClientWebSocketResponse") -> str | None:
    from aiohttp import WSMsgType  # noqa: PLC0415 - see above

    message = await socket.receive()
    return str(message.data) if message.type is WSMsgType.TEXT else None


def _is_a_server(url: str) -> bool:
    """Whether it names a host, and a port or none, which is that of the scheme."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # half an address in brackets, a port that is no number
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def room_of(status: Any) -> int | None:
    """Whole CPUs of all nodes, from the cluster's own status; None if an autoscaler may add some.

    Without an autoscaler Ray names every node a type of its own.
    """
    try:
        cluster = status["data"]["clusterStatus"]
        types = cluster["autoscalerReport"]["nodeTypeMapping"].values()
        nodes = cluster["loadMetricsReport"]["usageByNode"].values()
        if not types or not all(_READ_ONLY.fullmatch(name) for name in types):
            return None
        return sum(int(usage.get("CPU", (0, 0))[1]) for usage in nodes)
    except (AttributeError, KeyError, TypeError):
        return None


def _job(values: dict[str, Any]) -> RayJob:
    status = WORDS.get(values["status"], values["status"].lower())
    if status == "failed" and values.get("driver_exit_code") == STOPPED_CODE:
        status = "stopped"  # not through Ray: its driver saw the run stop
    return RayJob(
        ray_id=values["submission_id"],
        status=status,
        message=values.get("message") or "",
        started_s=(values.get("start_time") or 0) / 1000,
        exit_code=values.get("driver_exit_code"),
        metadata=values.get("metadata") or {},
    )
