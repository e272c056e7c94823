from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.config import (
    ClusterSettings,
    Settings,
    described,
    is_loopback,
    load,
    load_spark,
    load_tables,
    variable,
)
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_those_of_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load({})
    assert (settings.host, settings.port) == ("127.0.0.1", 4000)
    assert settings.data_dir == Path("topics-data")
    assert settings.max_body_bytes == 64 * MIB
    assert (settings.max_topics, settings.max_routers) == (100_000, 10_000)
    assert settings.heartbeat_ms_min == 1_000


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path):
    file = written(tmp_path, '[server]\nport = 1\nmax_topics = 2\nhost = "127.0.0.2"\n')
    settings = load(
        {"PENSTOCK_PORT": "3", "PENSTOCK_MAX_TOPICS": "4"}, file=file, flags={"port": 5}
    )
    assert (settings.port, settings.max_topics, settings.host) == (5, 4, "127.0.0.2")


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("127.0.0.1:4567", "127.0.0.1", 4567),
        ("localhost", "localhost", 4000),
        ("[::1]:99", "::1", 99),
        ("::1", "::1", 4000),
        ("[::1]", "::1", 4000),
    ],
)
def test_a_host_may_carry_its_port(given, host, port):
    settings = load({"PENSTOCK_HOST": given})
    assert (settings.host, settings.port) == (host, port)


def test_a_port_that_is_named_wins_over_the_one_in_the_host():
    settings = load({"PENSTOCK_HOST": "127.0.0.1:1", "PENSTOCK_PORT": "2"})
    assert settings.port == 2


def test_an_unknown_variable_is_refused_with_the_nearest_known_one():
    with pytest.raises(Rejected, match="did you mean PENSTOCK_MAX_TOPICS"):
        load({"PENSTOCK_MAX_TOPIC": "1"})


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_known_one(tmp_path):
    with pytest.raises(Rejected, match="did you mean data_dir"):
        load({}, file=written(tmp_path, '[server]\ndatadir = "x"\n'))


def test_an_unknown_table_of_the_file_is_refused(tmp_path):
    with pytest.raises(Rejected, match="did you mean server"):
        load({}, file=written(tmp_path, "[serve]\nport = 1\n"))


@pytest.mark.parametrize(
    ("text", "home"), [("max_topics = 3", "[server]"), ("port = 3", "[server] or [ingest]")]
)
def test_a_key_above_all_tables_is_told_where_it_belongs(tmp_path, text, home):
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    with pytest.raises(Rejected) as caught:
        load({}, file=path)
    assert str(caught.value).endswith(f"stands in no table: move it into {home}")


def test_a_file_that_was_named_must_exist_and_be_toml(tmp_path):
    with pytest.raises(Rejected, match="there is no settings file"):
        load({}, file=tmp_path / "absent.toml")
    with pytest.raises(Rejected, match="is not TOML"):
        load({"PENSTOCK_CONFIG": str(written(tmp_path, "[server\n"))})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "many", "whole number"),
        ("PORT", "65536", "from 0 to 65535"),
        ("PROBE_AUTH", "perhaps", "true or false"),
        ("STORE", "paper", "one of"),
        ("LOG", "loud", "one of"),
        ("MAX_BODY_BYTES", "0", "at least 1"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected(name, value, said):
    with pytest.raises(Rejected, match=said):
        load({f"PENSTOCK_{name}": value})


def test_a_server_beyond_this_machine_needs_keys_or_an_override():
    with pytest.raises(Rejected, match="needs API keys"):
        load({"PENSTOCK_HOST": "0.0.0.0"})
    assert load({"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_API_KEYS": "k"}).host == "0.0.0.0"
    override = {"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_ALLOW_INSECURE_NO_AUTH": "1"}
    assert load(override).allow_insecure_no_auth


def test_loopback_is_known_by_address_and_one_name():
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "example.org")] == [
        True, True, True, False,
    ]  # fmt: skip


def test_lists_are_written_with_commas_as_lists_or_by_repeated_flags(tmp_path):
    file = written(tmp_path, '[server]\nallowed_origins = ["https://a", "https://b"]\n')
    assert load({}, file=file).allowed_origins == ("https://a", "https://b")
    environ = {"PENSTOCK_ALLOWED_ORIGINS": " https://c ,https://d,", "PENSTOCK_ALLOWED_HOSTS": ""}
    settings = load(environ, file=file, flags={"allowed_hosts": ("x", "y")})
    assert settings.allowed_origins == ("https://c", "https://d")
    assert settings.allowed_hosts == ("x", "y")
    with pytest.raises(Rejected, match="allowed_hosts must be a list of texts"):
        load({}, file=written(tmp_path, "[server]\nallowed_hosts = [1]\n"))


def test_keys_are_not_shown_with_the_settings():
    assert "s3cret" not in repr(Settings(api_keys="s3cret"))


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(Rejected, match="tls_cert and tls_key go together"):
        Settings(tls_cert=Path("cert.pem"))


def test_the_limits_of_topics_come_from_the_settings():
    limits = Settings(max_record_bytes=5, max_topics=6).topic_limits()
    assert (limits.record_bytes_max, limits.topics_max) == (5, 6)


def test_every_setting_is_described_and_has_a_variable():
    for name, _, _, text, _ in described().values():
        assert text
        assert variable(name) == f"PENSTOCK_{name.upper()}"


def test_the_variables_of_clients_are_no_settings_and_no_mistakes():
    assert load({"PENSTOCK_URL": "http://127.0.0.1:4000", "PENSTOCK_API_KEY": "t"}) == Settings()


def test_spark_is_told_of_a_table_of_its_own(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[spark]\nmaster = "spark://a:7077"\ncores = 3\ndriver_host = "10.0.0.5"\n'
        "[spark.conf]\nspark.executor.memory = '4g'\n'spark.ui.enabled' = false\n"
    )
    found = load_spark({}, file=file)
    assert (found.master, found.cores, found.driver_host) == ("spark://a:7077", 3, "10.0.0.5")
    assert found.conf == {"spark.executor.memory": "4g", "spark.ui.enabled": "false"}


def test_a_place_for_spark_wins_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('[spark]\nremote = "sc://a:1"\ncores = 3\n')
    assert load_spark({}, file=file).remote == "sc://a:1"
    assert load_spark({"PENSTOCK_SPARK_REMOTE": "sc://b:1"}, file=file).remote == "sc://b:1"
    here = load_spark({}, file=file, place="local[2]")
    assert (here.remote, here.master, here.cores) == (None, "local[2]", 3)
    assert load_spark({}, file=file, place="sc://c:1").remote == "sc://c:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cors = 3", "unknown setting cors; did you mean cores?"),
        ("cores = 0", "not 0"),
        ("start_timeout_ms = 0", "start_timeout_ms must be at least 1"),
        ('archive = "often"', "archive must be one of use, build, off"),
        ("conf = 3", "conf must be a table"),
        ("conf = { spark.jars = [1] }", "conf.spark.jars must be text"),
    ],
)
def test_a_bad_setting_of_spark_is_refused(tmp_path, text, said):
    file = tmp_path / "penstock.toml"
    file.write_text(f"[spark]\n{text}\n")
    with pytest.raises(Rejected, match=re.escape(said)):
        load_spark({}, file=file)


def test_tables_have_a_table_of_their_own_and_the_variables_of_the_warehouse(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('[tables]\ncatalog = "sqlite:a"\nmax_workers = 2\nkeep_snapshots = "7d"\n')
    found = load_tables({}, file=file)
    assert (found.catalog, found.max_workers) == ("sqlite:a", 2)
    assert found.snapshot_retention_ms == 7 * 86_400_000
    assert load_tables({"PENSTOCK_CATALOG": "sqlite:b"}, file=file).catalog == "sqlite:b"
    both = {"PENSTOCK_CATALOG": "sqlite:b", "PENSTOCK_TABLES_CATALOG": "sqlite:c"}
    assert load_tables(both, file=file).catalog == "sqlite:c"
    assert load_tables(both, file=file, flags={"catalog": "sqlite:d"}).catalog == "sqlite:d"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_worker = 2", "did you mean max_workers?"),
        ("max_workers = 0", "max_workers must be at least 1"),
        ('parallel = "yes"', "parallel must be one of"),
        ('keep_snapshots = "long"', "long"),
    ],
)
def test_a_bad_setting_of_tables_is_refused(tmp_path, text, said):
    file = tmp_path / "penstock.toml"
    file.write_text(f"[tables]\n{text}\n")
    with pytest.raises(Rejected, match=said.replace("?", r"\?")):
        load_tables({}, file=file)


def test_flags_for_spark_win_over_the_file_and_settings_of_its_own_add_up(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[spark]\ncores = 4\nmemory_mb = 1024\n[spark.conf]\n"a.b" = "1"\n"c.d" = "2"\n'
    )
    flags = {"cores": 2, "memory_mb": None, "conf": {"c.d": "3"}}
    found = load_spark({}, file=file, flags=flags)
    assert (found.cores, found.memory_mb) == (2, 1_024)
    assert found.conf == {"a.b": "1", "c.d": "3"}


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "node.example.org"])
def test_peers_are_known_by_a_secret_or_certificates_on_all_but_loopback(host: str) -> None:
    with pytest.raises(Rejected, match=r"--cluster-secret-file.*--cluster-tls-cert.*127\.0\.0\.1"):
        ClusterSettings(peer_listen=f"{host}:4100")
    assert ClusterSettings(peer_listen=f"{host}:4100", secret_file=Path("s")).listens_on[1] == 4100
    pem = Path("x.pem")
    assert ClusterSettings(peer_listen=f"{host}:1", tls_cert=pem, tls_key=pem, tls_ca=pem)
    with pytest.raises(Rejected, match="go together"):
        ClusterSettings(peer_listen="127.0.0.1:1", tls_cert=pem)


def test_peers_on_loopback_need_no_secret() -> None:
    assert ClusterSettings(peer_listen="[::1]:4100").listens_on == ("::1", 4100)
