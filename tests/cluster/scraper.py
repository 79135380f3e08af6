"""A real Prometheus on loopback, with the configuration and the alerts that are shipped."""

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import yaml
from place import REPOSITORY, until
from s3_server import free_port

from remesh.actors.serving.metrics import TABLE

SHIPPED = REPOSITORY / "deploy" / "prometheus"
SCRAPE_S = 1  # which is also how long a scrape may take, or it counts for nothing
COUNTERS = [name for row in TABLE if row.kind != "gauge" for name in row.series]


class Scraper:
    def __init__(self, process, url, log):
        self._process = process
        self._url = url
        self._log = log

    @classmethod
    def start(cls, prometheus, folder, discovery):
        """Scrapes what the discovery address names; `folder` is empty."""
        port = free_port()
        (folder / "prometheus.yml").write_text(configuration(discovery))
        shutil.copy(SHIPPED / "alerts.yml", folder)
        log = folder / "log"
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stderr=log.open("w"),
        )
        return cls(process, f"http://127.0.0.1:{port}", log)

    def close(self):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=20)

    def series(self, expression):
        """The value of each series by its labels, without those of the target."""
        found = {}
        for entry in self._get("query", query=expression)["result"]:
            labels = {k: v for k, v in entry["metric"].items() if k not in ("instance", "job")}
            labels.pop("__name__", None)
            found[tuple(sorted(labels.items()))] = float(entry["value"][1])
        return found

    def value(self, expression):
        """The value of the only series, None where there is none."""
        values = list(self.series(expression).values())
        assert len(values) < 2, (expression, values)
        return values[0] if values else None

    def until(self, condition, what):
        """Waits until a scrape fulfils the condition."""

        def fulfilled():
            assert self._process.poll() is None, self._log.read_text()
            try:
                return condition()
            except OSError:  # it has not opened its port yet
                return None

        return until(fulfilled, what)

    def reset_counters(self):
        """Every counter that has ever gone back."""
        found = {name: self.series(f"resets({name}[1h]) > 0") for name in COUNTERS}
        return {name: series for name, series in found.items() if series}

    def ranks(self, when=""):
        """The ranks that have a series now, none but `when` that holds."""
        found = self.series(f"remesh_rank_info {when}")
        return sorted(int(dict(labels)["rank"]) for labels in found)

    def targets(self):
        return self._get("targets")["activeTargets"]

    def rules(self):
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def unhealthy_rules(self):
        return [rule for rule in self.rules() if rule["health"] == "err"]

    def _get(self, what, **arguments):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with opener.open(url, timeout=5) as answer:
            return json.load(answer)["data"]


def configuration(discovery):
    """What is shipped, scraping often and from this address."""
    shipped = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    times = {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "evaluation_interval": "1s"}
    shipped["global"] |= times
    (found,) = shipped["scrape_configs"][0]["http_sd_configs"]
    assert Path(found["url"]).name == "sd"
    found |= {"url": discovery, "refresh_interval": "1s"}
    return yaml.safe_dump(shipped)
