"""Replicas that are servers of their own, in lines of engines that start none: the same command for
each, and nginx before them, whose addresses say how many there are.
"""

from __future__ import annotations

import re

from predictor.errors import InputError
from reckon.launch.shell import Script
from reckon.launch.table import Facts, Flags, whole_number

SERVERS = "@servers"
"""Flag under which the number of servers is kept apart from the engine's flags."""

POOL = re.compile(r"\bupstream\s+[\w.-]+\s*\{([^}]*)\}")
ADDRESS = re.compile(r"(?:^|[;{\n])\s*server\s+[\w.\[\]:-]+")
"""A group of servers in nginx's configuration, and one of them (nginx.org,
ngx_http_upstream_module, read 2026-11-27)."""

CONFIG = """cat > nginx.conf <<'EOF'
events {{}}
http {{
  upstream engines {{
    least_conn;
{servers}
  }}
  server {{
    listen {port};
    location / {{ proxy_pass http://engines; }}
  }}
}}
EOF
nginx -c "$PWD/nginx.conf"
"""


def servers_say(facts: Facts) -> Flags:
    """How many servers, where there are several."""
    return {SERVERS: facts["dp"]} if facts["dp"] > 1 else {}


def servers_mean(flags: Flags, facts: Facts) -> int:
    """Replicas of a dense model that are servers of their own.

    Raises InputError for several of a mixture, whose replicas share its experts here.
    """
    count = whole_number("servers", flags.get(SERVERS, 1))
    if count > 1 and facts.get("model.num_experts"):
        raise InputError(
            f"{count} servers, each with all experts of a mixture: give the line of one of them, "
            "and what it gets of the load"
        )
    return count


def as_servers(command: str, flags: Flags, port: int) -> str:
    """The command of one server, or of several with nginx before them.

    flags  of the line, with `SERVERS`
    port   where the client looks for the engine
    """
    count = int(flags.get(SERVERS, 1))
    if count == 1:
        return command
    servers = "\n".join(f"    server SERVER-{place}:{port};" for place in range(count))
    return (
        f"# on accelerators of its own each of {count} servers, SERVER-0 and on:\n{command}"
        f"# before them:\n{CONFIG.format(servers=servers, port=port)}"
    )


def servers_of(script: Script) -> Flags:
    """How many servers stand behind the nginx that a script sets up."""
    pools = [pool for text in script.files.values() for pool in POOL.findall(text)]
    counts = [len(ADDRESS.findall(pool)) for pool in pools]
    return {SERVERS: max(counts)} if counts and max(counts) > 1 else {}
