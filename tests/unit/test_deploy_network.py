"""Who may speak to a pod of Remesh on Kubernetes, and whom it reaches."""

from ipaddress import ip_address, ip_network

from kuberay import LABEL, the

OWN = {"podSelector": {"matchLabels": LABEL}}
NAMESPACE = "kubernetes.io/metadata.name"
NODE_LOCAL_DNS = "169.254.20.10"
METADATA_SERVER = "169.254.169.254"


def ports_of_the_head():
    head = the("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    return {port["name"]: port["containerPort"] for port in head["ports"]}


def policy():
    return the("NetworkPolicy", "remesh")["spec"]


def names_rule():
    """The rule of egress that lets pods ask for names."""
    (rule,) = [r for r in policy()["egress"] if r["to"] != [OWN]]
    return rule


def test_only_pods_of_remesh_reach_the_ports_of_training():
    assert policy()["podSelector"] == {"matchLabels": LABEL}
    assert set(policy()["policyTypes"]) == {"Ingress", "Egress"}
    for rules, peers in ((policy()["ingress"], "from"), (policy()["egress"], "to")):
        for rule in rules:
            assert rule[peers] == [OWN] or rule["ports"]
    opened = {port["port"] for rule in policy()["ingress"] for port in rule.get("ports", ())}
    ports = ports_of_the_head()
    assert opened == {ports["dashboard"], ports["metrics"]}


def test_a_pod_of_another_namespace_comes_in_only_where_that_is_named():
    """security A6: whoever may create a pod somewhere can give it the label of an operator."""
    peers = [peer for rule in policy()["ingress"] for peer in rule["from"]]
    peers += [peer for rule in policy()["egress"] for peer in rule["to"]]
    for peer in peers:
        if "namespaceSelector" in peer:
            assert set(peer["namespaceSelector"]["matchLabels"]) == {NAMESPACE}
            assert "matchLabels" in peer["podSelector"]


def test_names_are_asked_of_the_cache_of_a_node_too():
    """inputs B6: with NodeLocal DNSCache pods ask an address of their node, not a pod."""
    blocks = [peer["ipBlock"]["cidr"] for peer in names_rule()["to"] if "ipBlock" in peer]
    assert blocks == [f"{NODE_LOCAL_DNS}/32"]
    assert {(port["protocol"], port["port"]) for port in names_rule()["ports"]} == {
        ("UDP", 53),
        ("TCP", 53),
    }


def test_a_store_is_reached_by_a_policy_of_its_own():
    """inputs B6, user 8: policies add up, so whoever has a bucket applies this one as well."""
    store = the("NetworkPolicy", "remesh-store")["spec"]
    assert store["podSelector"] == {"matchLabels": LABEL}
    assert store["policyTypes"] == ["Egress"]
    (rule,) = store["egress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 443}]
    (block,) = [peer["ipBlock"] for peer in rule["to"]]
    closed = [ip_network(cidr) for cidr in block["except"]]
    for address in (METADATA_SERVER, "10.0.0.7", "172.16.0.1", "192.168.1.1"):
        assert any(ip_address(address) in network for network in closed)
    assert not any(ip_address("52.218.0.1") in network for network in closed)
    assert block["cidr"] == "0.0.0.0/0"


def test_without_that_policy_no_address_but_that_of_names_is_reached():
    """inputs B6"""
    blocks = [
        peer["ipBlock"]["cidr"]
        for rule in policy()["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    assert blocks == [f"{NODE_LOCAL_DNS}/32"]
