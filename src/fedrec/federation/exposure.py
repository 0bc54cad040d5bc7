"""What a server sees of a method's uploads, and what it can read off them: for lists, and for servers that start."""

from __future__ import annotations

from fedrec.federation.contract import Method

UPLOADS = "computed from the client's own items, which can be inferred from the rows that moved and their direction"


def describe_server_view(method: Method) -> str:
    """In a sentence, without secure sums and with them."""
    disclosure, revealed = method.disclosure, method.disclosure.reveals or UPLOADS
    if disclosure.secure_aggregation:
        return (
            f"blind server: needed. A single upload reveals everything ({revealed}); outside a simulation "
            "the server does not start without secure sums"
        )
    if disclosure.gathers:
        return f"blind server: no. The server needs single uploads, {revealed}; noise is the only protection"
    return f"blind server: yes, with --secure-sums. Without, the server sees single uploads, {revealed}"
