import pytest

from remesh.actors.cluster.connection import connect
from remesh.orchestrator.job.driver_words import RunOptions
from remesh.orchestrator.user_errors import UnreachableError, UserError


@pytest.mark.parametrize("address", ["nonsense", "head:", "head:99999", "http://head:8265", ""])
def test_what_is_no_address_of_a_cluster_is_the_user_s_to_mend(address):
    """user 18: it was code 4, for which one waits and tries again."""
    with pytest.raises(UserError, match="expected HOST:PORT of a running Ray head"):
        connect(None, RunOptions(address=address))


def test_where_no_head_answers_is_unreachable():
    with pytest.raises(UnreachableError, match="no Ray head answers there"):
        connect(None, RunOptions(address="127.0.0.1:9"))
