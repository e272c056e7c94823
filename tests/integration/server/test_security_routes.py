"""Who may do what, for every route there is: no route is forgotten, because the table says them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

import pytest

from penstock.protocol.errors import NotClustered, NoWarehouse
from penstock.protocol.routes import ADMIN, DELETE, READ, WRITE, Route
from penstock.server.api import auth
from penstock.server.api.app import ROUTES
from tests.conformance.servers import ServerProcess
from tests.conformance.sockets import Socket
from tests.conformance.streams import EventStream
from tests.conformance.wire import Answer, Api, at, done, router_at
from tests.integration.server.hostile import assert_envelope

SECRETS = {
    "root": "root-secret-0",
    "read": "read-secret-1",
    "write": "write-secret-2",
    "delete": "delete-secret-3",
    "admin": "admin-secret-4",
    "team": "team-secret-5",
}
KEYS = (
    ",".join(f"{SECRETS[name]}:{name}" for name in ("read", "write", "delete", "admin"))
    + f",{SECRETS['root']},{SECRETS['team']}::team-"
)
SCOPES = {
    "read": READ,
    "write": WRITE,
    "delete": DELETE,
    "admin": ADMIN,
}
BODIES = {
    "TopicConfig": {},
    "AppendBody": {"records": [{"data": 1}]},
    "DiffBody": {},
    "DeleteBody": {"before_seq": 1},
    "AppendManyBody": {"writes": [{"topic": "other-q", "records": [{"data": 1}]}]},
    "RouterBody": {"source": "other-t", "dest": "other-new"},
    "WatchBody": {"topics": {"other-t": {}}},
    "ClaimBody": {"node": "n"},
    "AckBody": {"node": "n", "seqs": [1]},
    "NackBody": {"node": "n", "seqs": [1]},
    "ExtendBody": {"node": "n", "seqs": [1], "lease_ms": 100},
    "RedriveBody": {"all": True},
    "LettersBody": {"all": True},
    "ExplainBody": {"query": "SELECT 1"},
}
GUARDED = [route for route in ROUTES.routes if route.guard == "key"]
EVERY = pytest.mark.parametrize("route", ROUTES.routes, ids=lambda r: f"{r.method} {r.path}")
EACH_GUARDED = pytest.mark.parametrize("route", GUARDED, ids=lambda r: f"{r.method} {r.path}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"), API_KEYS=KEYS, LOG="debug")
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture(scope="module")
def root(server: ServerProcess) -> Api:
    """The key that may do everything, on a server with topics within and without a prefix."""
    api = Api(server.address, SECRETS["root"])
    for prefix in ("team-", "other-"):
        api.make(f"{prefix}t")
        api.make(f"{prefix}q", type="queue")
        api.write(f"{prefix}t", "secret of " + prefix)
        api.route(f"{prefix}r", f"{prefix}t", f"{prefix}d")
    return api


def call(api: Api, route: Route, prefix: str = "other-") -> Answer:
    """A good request to a route, about topics of a prefix."""
    names = {"topic": "q", "router": "r", "session": "wid_" + "x" * 22}
    name = names.get(route.named, "")
    name = name if route.named == "session" else prefix + name
    path = route.path.replace("{name}", name)
    body = BODIES.get(route.body.__name__, {"directory": "x"}) if route.body else None
    text = json.dumps(body).replace("other-", prefix)
    query = {"open_work": {"node": "n"}, "metrics": {"topics": "true"}}.get(route.name, {})
    headers = {"Accept": "application/json"} if route.name == "open_work" else {}
    return api.request(
        route.method, path, None if body is None else text.encode(), headers, **query
    )


@EVERY
def test_without_a_key_nothing_but_probes_is_answered(root, route):
    for key in (None, "wrong", SECRETS["root"][:-1], SECRETS["root"] + "x", "*", "é" * 200):
        api = root.with_key(key if key is None or key.isascii() else None)
        answer = call(api, route)
        if route.guard == "probe":
            assert answer.status == 200
        elif route.named == "session":
            assert answer.status == 404  # an unknown session is unknown to everybody
        else:
            assert answer.status == 401, str(answer)
            assert_envelope(answer.json)
            assert answer.json["error"]["code"] == "unauthorized"


@EVERY
def test_a_wrong_method_or_path_is_told_to_known_keys_only(root, route):
    path = route.path.replace("{name}", "x")
    for wrong in (("PATCH", path), (route.method, path + "/more/and/more")):
        assert root.with_key(None).request(*wrong).status == 401
        assert root.request(*wrong).status in (404, 405)


@EACH_GUARDED
@pytest.mark.parametrize("key", SCOPES)
def test_a_key_without_the_scope_is_forbidden(root, route, key):
    answer = call(root.with_key(SECRETS[key]), route)
    if route.scopes & SCOPES[key] == route.scopes:
        assert answer.status not in (401, 403), str(answer)
    else:
        assert answer.status == 403, str(answer)
        assert_envelope(answer.json)
        assert answer.json["error"]["code"] == "forbidden"


FILTERED = ("list_topics", "list_routers", "metrics")
ABOUT_NOBODY = ("openapi", "scheduler", "make_backup", "show_session", "sign_out", "live")
TRIMMED = ("show_history", "show_events", "verdict", "waiting", "list_spaces")
# Answered to every key, without names that it does not reach.
# For keys without prefixes only.
ABOUT_ALL = tuple(
    r.name for r in ROUTES.routes if NoWarehouse in r.errors or NotClustered in r.errors
)


@EACH_GUARDED
def test_a_key_with_another_prefix_is_forbidden_or_sees_nothing(root, route):
    team = root.with_key(SECRETS["team"])
    answer = call(team, route)
    if route.name in FILTERED:
        assert answer.status == 200
        assert b"other-" not in answer.body, str(answer)
        assert b"team-t" in answer.body or b"team-r" in answer.body
    elif route.name in TRIMMED:
        assert answer.status == 200
        assert b"other-" not in answer.body, str(answer)
    elif route.name not in ABOUT_NOBODY:
        assert answer.status == 403, str(answer)
        assert b"secret of" not in answer.body
    if route.named == "stage":  # of the whole pipeline
        return
    if route.name not in (*ABOUT_NOBODY, *ABOUT_ALL) and (route.named or route.body):
        within = call(team, route, "team-")
        assert within.status not in (401, 403), str(within)
        restore(root)


def restore(root: Api) -> None:
    """Put back what an allowed request may have removed."""
    root.make("team-q", type="queue")
    root.route("team-r", "team-t", "team-d")


def test_a_backup_is_of_everything_and_not_for_a_key_with_a_prefix(root):
    team = root.with_key(SECRETS["team"])
    answer = team.post("/v0/backup", {"directory": "x"})
    assert answer.status == 403, str(answer)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v0/watch", {"topics": {"team-t": {}, "other-t": {}}}),
        ("POST", "/v0/watch", {"topics": {"other-t": {}}}),
        ("PUT", "/v0/routers/team-x", {"source": "team-t", "dest": "other-d"}),
        ("PUT", "/v0/routers/team-x", {"source": "other-t", "dest": "team-x"}),
        ("GET", "/v0/routers/other-r", None),
        ("DELETE", "/v0/routers/other-r", None),
        (
            "POST",
            "/v0/write",
            {
                "writes": [
                    {"topic": "team-t", "records": [{"data": 1}]},
                    {"topic": "other-t", "records": [{"data": 1}]},
                ]
            },
        ),
        ("GET", "/v0/scheduler?topic=other-t", None),
        ("PUT", "/v0/topics/team-q", {"dead_letter": "other-t"}),
        (
            "POST",
            "/v0/topics/team-new",
            {"records": [{"data": 1}], "config": {"type": "queue", "dead_letter": "other-t"}},
        ),
    ],
)
def test_a_name_in_a_body_or_query_is_held_to_the_prefix(root, method, path, body):
    before = root.diff("other-t")["head_seq"]
    answer = root.with_key(SECRETS["team"]).request(method, path, body)
    assert answer.status == 403, str(answer)
    assert b"secret of" not in answer.body
    assert root.diff("other-t")["head_seq"] == before
    assert root.get(at("team-new")).status == 404


def test_a_prefix_subscription_sees_only_what_its_key_reaches(root):
    session = root.with_key(SECRETS["team"]).post("/v0/watch", {"topics": {}, "prefixes": [""]})
    assert b"other-" not in session.body
    with Socket(root.address, key=SECRETS["team"]) as socket:
        socket.send("subscribe", topics={"other-t": {}}, request_id=1)
        assert socket.next("error")["code"] == "forbidden"
        socket.send("publish", topic="other-t", records=[{"data": 1}], request_id=2)
        assert socket.next("error")["code"] == "forbidden"


def test_a_watch_id_is_no_credential(root):
    url = root.watch("other-t")
    for key in (None, "wrong", *[secret for name, secret in SECRETS.items() if name != "root"]):
        answer = root.with_key(key).get(url)
        assert answer.status == 401, (key, str(answer))
        assert b"secret of" not in answer.body
        assert root.with_key(None).get(url, token=key or "").status == 401
    headers = {"Authorization": f"Bearer {SECRETS['root']}"}
    with EventStream(root.address, url, headers) as stream:
        assert stream.status == 200


@EACH_GUARDED
def test_a_token_in_the_query_counts_only_for_streams(root, route):
    if route.is_stream:
        return
    path = route.path.replace("{name}", "other-q") + f"?token={SECRETS['root']}"
    body = None if not route.body else json.dumps(BODIES.get(route.body.__name__, {})).encode()
    assert root.with_key(None).request(route.method, path, body).status == 401


def test_secrets_are_neither_told_nor_logged(server, root):
    """After all of the above: errors, metrics and the log know no key, not even a wrong one."""
    wrong = "wrong-but-still-secret"
    answers = [root.with_key(wrong).get("/v0/topics"), root.get("/v0/metrics")]
    answers += [root.with_key(None).get("/v0/topics", token=wrong)]
    answers += [root.get("/v0/scheduler"), root.get("/v0/openapi.json")]
    answers += [root.with_key(wrong).post(at("other-t"), b"{")]
    text = b"".join(answer.body + bytes(str(answer.headers), "utf-8") for answer in answers)
    text += (server.directory / "server.log").read_bytes()
    for secret in (wrong, *SECRETS.values()):
        assert secret.encode() not in text, secret


def test_keys_are_compared_as_digests_and_all_of_them():
    """The look itself: a digest of the asked key, compared with each kept digest, to the end."""
    source = inspect.getsource(auth.KeyRing.find)
    assert "compare_digest" in source
    assert "sha256" in source
    assert "return" not in source.split("for grant")[1].split("return found")[0]
    ring = auth.parse_keys(KEYS)
    assert ring is not None
    assert not any(secret in repr(vars(ring)) for secret in SECRETS.values())
    assert {ring.find(secret) is not None for secret in SECRETS.values()} == {True}


def test_a_router_is_shown_only_to_who_reaches_both_ends(root):
    team = root.with_key(SECRETS["team"])
    root.route("mixed", "team-t", "other-mixed")
    assert team.get(router_at("mixed")).status == 403
    assert team.delete(router_at("mixed")).status == 403
    listed = done(team.get("/v0/routers"))["routers"]
    assert "mixed" not in [router["router"] for router in listed]
