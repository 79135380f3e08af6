"""Prometheus' files and the board: they parse, and speak of metrics that there are."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import promql_parser
import pytest
import yaml
from kuberay import the, the_job
from needed import program

from remesh.actors.serving.metrics import TABLE
from remesh.actors.serving.picture import AXES
from remesh.orchestrator.accounts.goodput import PHASES, REASONS
from remesh.orchestrator.accounts.tally import PARTS, Cause
from remesh.orchestrator.control.memory.membership import NodeState, WorkerState
from remesh.orchestrator.control.words.phases import Phase

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
BOARD = json.loads((DEPLOY / "grafana" / "remesh.json").read_text())
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]

LABELS = {
    name: {"run", "instance", "job", *row.labels, *({"le"} if row.kind == "histogram" else ())}
    for row in TABLE
    for name in row.series
}
VALUES = {
    "state": {*Phase, *WorkerState, *NodeState},
    "axis": set(AXES),
    "phase": set(PHASES),
    "reason": set(REASONS),
    "cause": set(Cause),
    "part": set(PARTS),
}
VARIABLES = {"$__rate_interval": "1m", "$run": "tiny"}


def board_expressions():
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']}-{target['refId']}", target["expr"]
    for entry in BOARD["annotations"]["list"]:
        yield entry["name"], entry["expr"]


EXPRESSIONS = dict(board_expressions()) | {rule["alert"]: rule["expr"] for rule in RULES}


def shown(expression):
    """As the board asks it, with its variables set."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def parsed(expression):
    return promql_parser.parse(shown(expression))


def selectors(expression):
    """Every selector of series, those of ranges too."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(parsed(expression), visit)
    return found


def grouped_by(expression):
    """The labels that aggregations and matches name."""
    lists = re.findall(r"\b(?:by|on|without|ignoring) \(([a-z, ]*)\)", expression)
    return {label for labels in lists for label in labels.split(", ")}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_speaks_of_metrics_labels_and_values_that_there_are(name):
    expression = EXPRESSIONS[name]
    used = selectors(expression)
    assert used
    for selector in used:
        assert selector.name in LABELS
        for matcher in selector.matchers.matchers:
            assert matcher.name in LABELS[selector.name]
            named = set(matcher.value.split("|"))
            assert named <= VALUES.get(matcher.name, named)
    assert grouped_by(expression) <= set.union(*(LABELS[selector.name] for selector in used))


def test_a_selector_inside_of_anything_is_found():
    nested = (
        "histogram_quantile(0.5, sum by (le) (rate(a_bucket[1m]))) / on (run) -(b > 1)"
        " or max_over_time(c[1h:1m])"
    )
    assert [selector.name for selector in selectors(nested)] == ["a_bucket", "b", "c"]


def test_every_metric_stands_on_the_board():
    shown = {
        s.name for expression in dict(board_expressions()).values() for s in selectors(expression)
    }
    assert [row.name for row in TABLE if not shown & set(row.series)] == []


def test_the_readme_names_metrics_that_there_are():
    named = set(re.findall(r"`(remesh_\w+)`", (DEPLOY.parent / "README.md").read_text()))
    assert named
    assert named <= {row.name for row in TABLE}


def test_legends_name_labels_that_the_expression_leaves():
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            left = set.union(*(LABELS[s.name] for s in selectors(target["expr"])))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left


def test_the_board_shows_one_run_and_its_panels_do_not_overlap():
    for expression in dict(board_expressions()).values():
        assert all('run="tiny"' in str(s.prettify()) for s in selectors(expression))
    cells = Counter(
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) == 23
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_what_happened_and_what_to_do(rule):
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-kubernetes.yml"])
def test_promtool_accepts_the_configuration(name):
    promtool("check", "config", "--lint-fatal", name)
    (scrape,) = yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]
    assert scrape["honor_labels"] is True
    assert scrape["job_name"] == "remesh"


def test_promtool_accepts_the_alerts():
    promtool("check", "rules", "--lint-fatal", "alerts.yml")


def test_each_alert_rings_for_its_fault_and_none_for_a_good_run():
    promtool("test", "rules", "alerts.test.yml")
    tested = (PROMETHEUS / "alerts.test.yml").read_text()
    for rule in RULES:
        assert len(re.findall(rf"alertname: {rule['alert']}\b", tested)) == 2


def test_no_wanted_end_and_no_young_run_rings():
    """user 13, user section 3: gone is who vanished without having said how it ended."""
    promtool("test", "rules", "ended.test.yml")


def test_the_operator_of_prometheus_gets_the_same_rules_and_the_heads():
    """user section 3: its users have no place for a prometheus.yml."""
    made = subprocess.run([PROMETHEUS / "for-operator"], capture_output=True, text=True, check=True)
    monitor, rules = yaml.safe_load_all(made.stdout)
    assert (monitor["kind"], rules["kind"]) == ("PodMonitor", "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == the("Service")["spec"]["selector"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    head = the("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert ports[endpoint["port"]] == the_job().metrics.port


def divisions():
    for name, expression in board_expressions():
        found = []
        promql_parser.walk(parsed(expression), found.append)
        if any(isinstance(n, promql_parser.BinaryExpr) and "/" in str(n.op) for n in found):
            yield name


def test_no_panel_shows_nothing_divided_by_nothing(tmp_path):
    """user section 3: a run without a recovery, or without a step, has no average of them."""
    shares = list(divisions())
    assert len(shares) == 3
    used = {s.name for name in shares for s in selectors(EXPRESSIONS[name])}
    series = [
        name + "{" + ",".join(f'{label}="tiny"' for label in sorted(LABELS[name])) + "}"
        for name in used
    ]
    asked = [{"expr": shown(EXPRESSIONS[name]), "eval_time": "90m"} for name in shares]
    nothing = [{"series": one, "values": "0x90"} for one in series]
    tests = [{"interval": "1m", "input_series": nothing, "promql_expr_test": asked}]
    (tmp_path / "zeros.test.yml").write_text(yaml.safe_dump({"tests": tests}))
    promtool("test", "rules", tmp_path / "zeros.test.yml")


def promtool(*args):
    command = [program("promtool"), *args]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
