"""serve: real processes that start, answer, take signals, and end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import pty
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from jsonschema import Draft202012Validator

from tests import warm_start
from tests.builders import build_directory
from tests.cli.nodes import PATIENCE, Served, serving, starting, write_config
from tests.cli.running import ROOT, command_line, environment, invoke, on_terminal, run
from tests.net.certificates import PASSWORD, Authority
from tests.reserved_ports import reserved_ports
from waltzctl import foreground
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.foreground import Service
from waltzctl.formats.control import Layout
from waltzctl.ready_file import ReadyFile


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text()))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 3, 1: 0, 2: 20}, num_partitions=4, layout=Layout.RELEASED)


FREE = ("--port", "0")
ANY = [0, 0, 0]
"""Free ports as well, of a configuration file."""


# --- start ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [(), ("--no-uvloop",)], ids=["uvloop", "asyncio"])
def test_it_says_that_it_is_ready_once_all_ports_answer(storage: Path, tmp_path: Path, loop: tuple[str, ...]) -> None:
    file = tmp_path / "ready.json"
    with serving(storage, *FREE, "--ready-file", file, *loop) as node:
        validator("ready").validate(node.ready)
        assert json.loads(file.read_text()) == node.ready
        assert [path.name for path in tmp_path.iterdir() if path != storage] == ["ready.json"]
        assert node.ready["pid"] == node.process.pid
        assert (node.ready["host"], node.ready["tls"], node.ready["num_partitions"]) == ("127.0.0.1", True, 4)
        assert node.ready["directory"] == str(storage)
        assert node.http("/ping").strip() == "pong"
        assert json.loads(node.http("/health"))["storage-health-check"]["healthy"] is True
        for port in ("port", "admin_port"):
            assert node.certificate(port)
        assert node.stop() == 0
        assert not file.exists()


def test_ports_follow_the_data_port(storage: Path) -> None:
    ports = reserved_ports(3)
    with serving(storage, "--port", ports[0]) as node:
        assert [node.ready["port"], node.ready["admin_port"], node.ready["http_port"]] == ports


def test_http_can_be_off_and_tls_too(storage: Path) -> None:
    with serving(storage, *FREE, "--http-port", "off", "--plaintext") as node:
        assert (node.ready["http_port"], node.ready["tls"]) == (None, False)
        with node.connect() as connection:
            hello = b"H\0\0\0\0\0\x15" + b"\0\0\0\1\0\0" + b"\0\0\0\x0bStorageClient"[:15]
            connection.sendall(hello)
            assert connection.recv(1) == b"H"
        assert node.stop() == 0


def test_with_the_configuration_file_of_a_released_node(storage: Path, tmp_path: Path) -> None:
    ports = reserved_ports(3)
    config = write_config(tmp_path / "node.yaml", storage, ports, "storage.segment.size.threshold: 4096", "made.up: 1")
    with serving("--config", config) as node:
        assert [node.ready["port"], node.ready["admin_port"], node.ready["http_port"]] == ports
        assert "made.up is no known key" in node.wait_log("made.up")
        assert node.http("/ping").strip() == "pong"
        assert node.stop() == 0


def test_options_go_before_the_environment_and_that_before_the_file(storage: Path, tmp_path: Path) -> None:
    row = reserved_ports(3)
    config = write_config(tmp_path / "node.yaml", tmp_path / "nowhere", [1, 2, 3])
    changes = {"WALTZCTL_SERVE_PORT": str(row[1]), "WALTZCTL_SERVE_ADMIN_PORT": str(row[2]), "WALTZCTL_SERVE_HTTP_PORT": "off",
               "WALTZCTL_SERVE_CONFIG": str(config)}  # fmt: skip
    with serving(storage, "--port", row[0], **changes) as node:
        assert (node.ready["port"], node.ready["admin_port"], node.ready["http_port"]) == (row[0], row[2], None)
        assert node.ready["directory"] == str(storage)


def test_the_screen_on_a_terminal(storage: Path) -> None:
    answer = on_terminal(
        "serve", storage, *FREE, "--http-port", "off", typed=b"\x03", after=b"Ctrl-C stops", columns=200
    )
    assert answer.status == 0
    assert f"serves {storage}" in answer.out
    assert "partitions   0-2   (of 4, released layout)" in answer.out
    assert re.search(r"data port    127\.0\.0\.1:\d+   TLS, self-signed certificate; any client", answer.out)
    assert "HTTP port    off" in answer.out


@pytest.mark.turns(8)
def test_the_live_table_on_a_terminal(storage: Path) -> None:
    answer = on_terminal("serve", storage, *FREE, "--live", typed=b"\x03", after=b"connections:", columns=150)
    assert answer.status == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer.out)
    assert re.search(r"P\s+RW\s+SESSION\s+MARK\s+LOCAL\s+LAST\s+APPENDS/S", shown)
    assert re.search(r"\n\s*2\s+rw\s+\d+\s+\d+\s+\d+\s+19\s+0\s+0\s+-\s+-", shown)
    assert "connections: 0 data, 0 admin, 0 http" in shown
    drawn = answer.out[: answer.out.index("connections:")]  # a node that is killed then leaves the shell its cursor
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l") > -1


def test_live_objects_elsewhere(storage: Path) -> None:
    with serving(storage, *FREE, "--live") as node:
        live = node.next_object()
        validator("live").validate(live)
        assert [(one["partition"], one["last_transaction_id"]) for one in live["partitions"]] == [
            (0, 2),
            (1, None),
            (2, 19),
        ]
        assert node.stop() == 0


def test_a_reader_of_stdout_that_goes_away_does_not_end_the_node(storage: Path) -> None:
    with serving(storage, *FREE) as node:
        assert node.process.stdout is not None
        node.process.stdout.close()
        assert node.http("/ping").strip() == "pong"
        assert node.stop() == 0


# --- nobody reads --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def narrow_pipe() -> Iterator[tuple[int, int]]:
    """A pipe with room for 4096 bytes."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.close(writing)


def in_pipe(reading: int) -> int:
    """Bytes that nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)


@contextlib.contextmanager
def writing_to(file: Path, *arguments: object, **streams: Any) -> Iterator[tuple[Any, int]]:
    """A node that wrote its ready file, and its HTTP port; killed at the end unless it has ended by then."""
    process = warm_start.Popen(
        command_line("serve", *arguments, *FREE, "--plaintext", "--ready-file", file),
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams},
        env=environment(PYTHONUNBUFFERED=""),
    )
    try:
        while not file.exists():
            assert process.poll() is None
            time.sleep(0.02)
        yield process, json.loads(file.read_text())["http_port"]
    finally:
        process.kill()
        process.wait()


def pong(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=20) as answer:
        assert answer.read().strip() == b"pong"


@pytest.mark.turns(10)
def test_a_log_that_nobody_reads_does_not_keep_the_node_from_ending(storage: Path, tmp_path: Path) -> None:
    with (
        narrow_pipe() as (reading, log),
        writing_to(tmp_path / "ready", storage, "--verbose", stderr=log) as (process, port),
    ):
        for _ in range(40):  # a warning each
            with socket.create_connection(("127.0.0.1", json.loads((tmp_path / "ready").read_text())["port"])) as peer:
                peer.sendall(b"x" * 100)
                while peer.recv(100):
                    pass
        while in_pipe(reading) < 3500:
            time.sleep(0.02)
        os.close(log)
        pong(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_configuration_that_cannot_be_read_to_its_end_does_not_keep_the_node_from_ending(
    storage: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "node.yaml", storage, ANY)
    with serving("--config", config) as node:
        config.unlink()
        os.mkfifo(config)  # as a file server that does not answer
        node.signal(signal.SIGHUP)
        deadline, held = time.monotonic() + PATIENCE, None
        while held is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # until the node has opened it
                held = os.open(config, os.O_WRONLY | os.O_NONBLOCK)
        assert node.stop() == 0
        os.close(held)


def test_a_certificate_that_cannot_be_read_to_its_end_does_not_keep_the_node_from_ending(
    storage: Path, tmp_path: Path
) -> None:
    leaf, pem = Authority().issue("node"), tmp_path / "node.pem"
    pem.write_bytes(leaf.certificate_pem() + leaf.key_pem())
    with serving(storage, *FREE, "--certificate", pem) as node:
        pem.unlink()
        os.mkfifo(pem)
        node.signal(signal.SIGHUP)
        deadline, held = time.monotonic() + PATIENCE, None
        while held is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # until the node has opened it
                held = os.open(pem, os.O_WRONLY | os.O_NONBLOCK)
        assert node.stop() == 0
        os.close(held)


@pytest.mark.turns(10)
def test_live_objects_that_nobody_reads_stop_no_request(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", dict.fromkeys(range(64), 1), num_partitions=64)
    with (
        narrow_pipe() as (reading, out),
        writing_to(tmp_path / "ready", storage, "--live", "--format", "ndjson", stdout=out) as (process, port),
    ):
        while not in_pipe(reading):
            time.sleep(0.02)
        time.sleep(1)  # what comes behind the first object has no room
        os.close(out)
        pong(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.turns(10)
def test_a_live_table_on_a_terminal_that_stands_still_stops_no_request(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", dict.fromkeys(range(64), 1), num_partitions=64)
    leader, follower = pty.openpty()
    try:
        with writing_to(
            tmp_path / "ready", storage, "--live", "--format", "table", stdout=follower, stderr=follower
        ) as (process, port):
            while select.select([], [follower], [], 0)[1]:
                time.sleep(0.02)
            pong(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(follower)
        os.close(leader)


def test_quiet_says_nothing(storage: Path) -> None:
    file = storage.parent / "ready"
    with starting(storage, *FREE, "-q", "--ready-file", file) as node:
        while not file.exists():
            assert node.process.poll() is None
        assert node.stop() == 0
        assert node.log == []


# --- what cannot be started ----------------------------------------------------------------------------------------------


def test_not_a_storage_directory(tmp_path: Path) -> None:
    assert run("serve", tmp_path, *FREE).status == 10
    answer = run("serve", tmp_path / "none", *FREE)
    assert answer.status == 10
    assert "waltzctl create-cluster" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_locked_directory(storage: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with serving(storage, *FREE) as node:
        answer = run("serve", storage, *FREE, "--ready-file", ready)
        assert answer.status == 11
        assert f"locked by process {node.process.pid}" in answer.err
        assert not ready.exists()
        assert node.stop() == 0


def test_a_version_that_is_not_known(storage: Path) -> None:
    control = bytearray((storage / "waltz-storage.ctl").read_bytes())
    control[3] = 9
    (storage / "waltz-storage.ctl").write_bytes(control)
    assert run("serve", storage, *FREE).status == 12


@pytest.mark.turns(8)
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_port_in_use_is_named_and_leaves_nothing_behind(storage: Path, tmp_path: Path, taken: int) -> None:
    ports = reserved_ports(3)
    ready = tmp_path / "ready"
    with socket.create_server(("127.0.0.1", ports[taken])):
        answer = run("serve", storage, "--port", ports[0], "--ready-file", ready)
    assert answer.status == 14
    assert f"127.0.0.1:{ports[taken]}: cannot listen there: " in answer.err
    assert not ready.exists()
    DirectoryLock.acquire(storage, storage / "waltz-storage.ctl").release()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no storage directory is named"),
        (["{storage}", "--port", "x"], "--port: must be a whole number"),
        (["{storage}", "--port", "70000"], "--port: must be a port"),
        (["{storage}", "--port", "5000", "--admin-port", "5000"], "the data and the admin port are both 5000"),
        (["{storage}", "--http-port", "no"], "--http-port: must be a whole number"),
        (["{storage}", "--drain", "long"], "--drain: 'long' is not understood"),
        (["{storage}", "--log-format", "xml"], "--log-format: must be one of human, json"),
        (["{storage}", "--log-level", "loud"], "--log-level: must be one of"),
        (["{storage}", "--segment-size", "0"], "--segment-size: must be a number of bytes, at least 1, not 0"),
        (["{storage}", "--config", "/nowhere/node.yaml"], "/nowhere/node.yaml: cannot read the configuration"),
        (["{storage}", "--key", "/nowhere"], "a private key is given without its certificate"),
        (["{storage}", "--key-store", "/nowhere/k", "--key-store-password", "x"], "/nowhere/k: cannot read"),
        (["{storage}", "--key-store-password-file", "/nowhere/p"], "/nowhere/p: cannot read the password"),
        (["{storage}", "--trust-store-type", "BKS"], "no such type of store"),
        (["{storage}", "--ready-file", "/nowhere/ready"], "its directory does not exist"),
        (["{storage}", "--ready-file", "/"], "it is a directory"),
        (["{storage}", "--ready-file", ""], "the path is empty"),
        ([""], "the path is empty"),
        (["{storage}", "{storage}"], "unexpected extra argument"),
        (["{storage}", "--no-such-option"], "No such option"),
    ],
)
def test_arguments_that_cannot_be_meant(storage: Path, arguments: list[str], message: str) -> None:
    answer = invoke("serve", *(word.format(storage=storage) for word in arguments))
    assert answer.status == 2
    assert message in answer.err


def test_plaintext_beyond_loopback_is_refused_unless_insecure_is_said(storage: Path) -> None:
    answer = invoke("serve", storage, *FREE, "--plaintext", "--host", "0.0.0.0")
    assert answer.status == 13
    assert "without TLS everybody on the way can read and change what is sent" in answer.err
    with serving(storage, *FREE, "--plaintext", "--host", "0.0.0.0", "--insecure") as node:
        assert "whoever reaches the ports can write" in node.wait_log("0.0.0.0: no TLS")
        assert node.stop() == 0


def test_beyond_loopback_without_a_trust_store_one_line_says_who_can_write(storage: Path) -> None:
    with serving(storage, *FREE, "--host", "0.0.0.0") as node:
        assert node.stop() == 0
        assert len([line for line in node.log if "whoever reaches the ports can write" in line]) == 1
    with serving(storage, *FREE) as node:
        assert node.stop() == 0
        assert not [line for line in node.log if "can write" in line]


# --- TLS and secrets -----------------------------------------------------------------------------------------------------


def hung_up(connection: socket.socket) -> bool:
    """Whether the other side closes, with or without saying why, before it sends anything."""
    try:
        return connection.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_stores_given_on_the_command_line(storage: Path, tmp_path: Path) -> None:
    authority = Authority()
    leaf = authority.issue("node", "127.0.0.1")
    stores = tmp_path / "stores"
    stores.mkdir()
    key, trust = leaf.write(stores, "JKS"), authority.write(stores, "PKCS12")
    (stores / "password").write_text(PASSWORD + "\n")
    arguments = ["--key-store", key, "--key-store-password-file", stores / "password", "--trust-store", trust,
                 "--trust-store-type", "PKCS12", "--log-level", "debug"]  # fmt: skip
    with serving(storage, *FREE, *arguments, WALTZCTL_SERVE_TRUST_STORE_PASSWORD=PASSWORD) as node:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.certificate.public_bytes(Encoding.DER))
        with node.connect() as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
            assert wrapped.getpeercert(binary_form=True) == leaf.certificate.public_bytes(Encoding.DER)
            assert hung_up(wrapped)
        assert node.stop() == 0
        assert PASSWORD not in "\n".join(node.log)


def test_the_settings_that_hold_are_shown_without_secrets(storage: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "node.yaml", storage, [7001, 7002, 7003], "storage.ssl.keyStore.password: sesame-one"
    )
    answer = run("serve", "--config", config, "--show-config", "--port", "0", "--format", "ndjson",
                 WALTZCTL_SERVE_TRUST_STORE_PASSWORD="sesame-two")  # fmt: skip
    assert answer.status == 0
    assert "sesame" not in answer.out + answer.err
    found = {one["key"]: one for one in answer.objects}
    for one in answer.objects:
        validator("setting").validate(one)
    assert (found["storage.port"]["value"], found["storage.port"]["source"]) == (0, "--port")
    assert (found["storage.admin.port"]["value"], found["storage.admin.port"]["source"]) == (7002, f"{config}:2")
    assert found["storage.ssl.keyStore.password"]["value"] == "(hidden)"
    assert found["storage.ssl.trustStore.password"]["source"] == "WALTZCTL_SERVE_TRUST_STORE_PASSWORD"
    assert found["waltzctl.host"] == {
        "schema": "waltzctl.setting/1", "type": "setting", "key": "waltzctl.host", "value": "127.0.0.1", "source": "default",
        "variable": "WALTZCTL_SERVE_HOST", "meaning": "address to listen at",
    }  # fmt: skip


def test_settings_that_cannot_be_started_with_are_shown_all_the_same() -> None:
    answer = run("serve", "--show-config", "--port", "7", "--format", "ndjson")
    assert answer.status == 2
    *settings, error = answer.objects
    assert {one["key"]: one["value"] for one in settings}["storage.admin.port"] == 8
    assert (error["type"], error["error"]) == ("error", "usage")
    assert "no storage directory is named" in answer.err


def test_log_lines_are_objects_when_asked_for(storage: Path) -> None:
    with serving(storage, *FREE, "--log-format", "json", "--log-level", "debug") as node:
        node.certificate()
        assert node.stop() == 0
        assert node.log
        for line in node.log:
            validator("log").validate(json.loads(line))


# --- signals -------------------------------------------------------------------------------------------------------------


@pytest.mark.turns(10)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(storage: Path, tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    with serving(storage, *FREE, "--ready-file", ready) as node:
        with node.connect("port"):
            node.signal(number)
            assert node.ended() == 0
        assert not ready.exists()
        assert node.log[-1].endswith("stopped")
    assert invoke("verify", storage).status == 0
    with serving(storage, *FREE) as node:
        assert node.stop() == 0


@contextlib.contextmanager
def silent_zookeeper() -> Iterator[int]:
    """A port that takes connections and never answers, so that a start takes as long as it may."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


SLOW_START = {
    "WALTZCTL_SERVE_CLUSTER_ROOT": "/waltz",
    "WALTZCTL_SERVE_ZOOKEEPER_CONNECT_TIMEOUT": "600s",
    "WALTZCTL_SERVE_ZOOKEEPER_SESSION_TIMEOUT": "600000",
}


def test_a_second_signal_ends_it_at_once(storage: Path) -> None:
    with silent_zookeeper() as port:
        changes = {**SLOW_START, "WALTZCTL_SERVE_ZOOKEEPER": f"127.0.0.1:{port}"}
        with starting(storage, *FREE, "--log-level", "debug", **changes) as node:
            node.wait_log("asking ZooKeeper")
            node.signal(signal.SIGTERM)
            node.wait_log("SIGTERM: stopping")
            node.signal(signal.SIGTERM)
            assert node.ended() == 130
            assert "ended at once" in node.log[-1]


@pytest.mark.turns(10)
def test_a_second_signal_ends_it_though_nobody_reads_its_log(storage: Path) -> None:
    """The pipe behind stderr is full, and the log's writer waits in it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with socket.create_server(("127.0.0.1", 0)) as zookeeper:
        changes = {**SLOW_START, "WALTZCTL_SERVE_ZOOKEEPER": f"127.0.0.1:{zookeeper.getsockname()[1]}"}
        process = warm_start.Popen(
            command_line("serve", storage, *FREE), stdout=subprocess.DEVNULL, stderr=writer, env=environment(**changes)
        )
        os.close(writer)
        try:
            zookeeper.settimeout(PATIENCE)
            with zookeeper.accept()[0]:  # it has begun to start, and gets no answer
                process.terminate()
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.5)
                process.terminate()
                assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
            process.wait()
            os.close(reader)


@pytest.mark.turns(10)
def test_a_zookeeper_that_does_not_answer_ends_the_start(storage: Path) -> None:
    with silent_zookeeper() as port:
        changes = {**SLOW_START, "WALTZCTL_SERVE_ZOOKEEPER": f"127.0.0.1:{port}",
                   "WALTZCTL_SERVE_ZOOKEEPER_CONNECT_TIMEOUT": "500ms"}  # fmt: skip
        answer = run("serve", storage, *FREE, **changes)
    assert answer.status == 14
    assert f"ZooKeeper at 127.0.0.1:{port}: no connection within 0.5 s" in answer.err


def test_sighup_takes_over_what_can_change_and_names_what_cannot(storage: Path, tmp_path: Path) -> None:
    first, second = Authority().issue("first"), Authority().issue("second")
    pem = tmp_path / "node.pem"
    pem.write_bytes(first.certificate_pem() + first.key_pem())
    config = tmp_path / "node.yaml"
    write_config(config, storage, ANY, f"waltzctl.certificate: {pem}")
    with serving("--config", config) as node:
        assert node.certificate() == first.certificate.public_bytes(Encoding.DER)
        pem.write_bytes(second.certificate_pem() + second.key_pem())
        write_config(config, storage, [0, 0, 1], f"waltzctl.certificate: {pem}",
                     "waltzctl.log.level: debug", "waltzctl.limits.maxConnections: 7")  # fmt: skip
        node.signal(signal.SIGHUP)
        node.wait_log("were read anew")
        assert f"storage.jetty.port is 1 ({config}:3): this needs a restart" in node.wait_log("restart")
        node.wait_log("waltzctl.limits.maxConnections is 7 now")
        for port in ("port", "admin_port"):
            assert node.certificate(port) == second.certificate.public_bytes(Encoding.DER)
        assert node.wait_log("DEBUG")
        assert node.http("/ping").strip() == "pong"
        assert node.stop() == 0


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    "broken",
    [
        "storage.port: many",
        "waltzctl.certificate: /nowhere",
        "waltzctl.limits.memory: 1",
        "waltzctl.limits.bigFrame: 4TiB",
        "x: !!bool foo",
        "storage.admin.port: 7\nstorage.port: 7",
        "waltzctl.plaintext: true\nwaltzctl.host: 0.0.0.0",
    ],
)
def test_a_new_configuration_that_is_wrong_changes_nothing(storage: Path, tmp_path: Path, broken: str) -> None:
    config = write_config(tmp_path / "node.yaml", storage, ANY)
    with serving("--config", config) as node:
        before = node.certificate()
        write_config(config, storage, ANY, "waltzctl.log.level: debug", broken)
        node.signal(signal.SIGHUP)
        node.wait_log("the configuration stays as it was: ")
        assert node.certificate() == before
        write_config(config, storage, ANY, "waltzctl.drain: 1s")
        node.signal(signal.SIGHUP)
        node.wait_log("waltzctl.drain is 1.0 now")
        assert not [line for line in node.log if "log.level" in line]
        assert node.stop() == 0


def test_a_reload_that_meets_a_mistake_of_ours_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    """The service manager is told each time that it is over."""
    told: list[str] = []
    ready = asyncio.Event()

    def say_ready(status: str) -> None:
        told.append(status)
        ready.set()

    def mistaken() -> Any:
        raise AttributeError("of ours")

    notifier: Any = SimpleNamespace(reloading=lambda: told.append("reloading"), ready=say_ready)
    kind: Any = SimpleNamespace(status=lambda _: "serving")
    log: Any = SimpleNamespace(logger=logging.getLogger(__name__))
    nothing: Any = None

    async def work() -> None:
        service: Service[Any, Any] = Service(kind, nothing, mistaken, log, notifier, nothing)
        taking = asyncio.ensure_future(service._reload_on_signal(nothing))
        for _ in range(2):
            ready.clear()
            service._reload_requested.set()
            over = asyncio.ensure_future(ready.wait())
            await asyncio.wait({taking, over}, return_when=asyncio.FIRST_COMPLETED)
            assert not taking.done()
        taking.cancel()

    asyncio.run(work())
    assert told == ["reloading", "serving"] * 2
    assert caplog.messages == ["the configuration stays as it was: of ours"] * 2
    assert all(one.exc_info for one in caplog.records), "somebody has to mend it"


def test_a_reload_that_hangs_does_not_keep_the_next_one_from_reading(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be on another disk by then, and the first thread never come back."""
    monkeypatch.setattr(foreground, "RELOAD_SECONDS", 0.1)
    answered, ready, reads = threading.Event(), asyncio.Event(), iter(["hanging"])

    def read() -> Any:
        if next(reads, None):
            answered.wait(60)
        raise InvalidRequestError("read to its end")

    notifier: Any = SimpleNamespace(reloading=lambda: None, ready=lambda _: ready.set())
    kind: Any = SimpleNamespace(status=lambda _: "serving")
    log: Any = SimpleNamespace(logger=logging.getLogger(__name__))
    nothing: Any = None

    async def work() -> None:
        service: Service[Any, Any] = Service(kind, nothing, read, log, notifier, nothing)
        taking = asyncio.ensure_future(service._reload_on_signal(nothing))
        for _ in range(2):
            ready.clear()
            service._reload_requested.set()
            await asyncio.wait_for(ready.wait(), 10)
        taking.cancel()

    try:
        asyncio.run(work())
    finally:
        answered.set()
    assert "has not come back" in caplog.messages[0]
    assert caplog.messages[1:] == ["the configuration stays as it was: read to its end"]


@pytest.mark.parametrize("loop", [(), ("--no-uvloop",)], ids=["uvloop", "asyncio"])
def test_a_probe_that_connects_and_goes_is_no_warning(storage: Path, loop: tuple[str, ...]) -> None:
    """A load balancer looks whether somebody listens, many times a minute.  Who says something wrong is a warning as before."""
    with serving(storage, *FREE, *loop, "--log-level", "debug") as node:
        for port in ("port", "admin_port", "http_port"):
            node.connect(port).close()
        node.wait_log("no connection came about", 2)
        with node.connect() as peer:
            peer.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
            node.wait_log("no connection came about", 3)
        assert node.stop() == 0
    told = [line for line in node.log if '"WARNING"' in line or " WARNING " in line]
    assert [line for line in told if "no connection came about" not in line] == []
    assert len(told) == 1, told


def health(node: Served) -> str:
    """What the health check answers, well or not."""
    try:
        return node.http("/health")
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.mark.turns(8)
def test_the_space_that_should_be_free_is_a_setting(storage: Path, tmp_path: Path) -> None:
    """By file, environment or option; a running node takes a new one."""
    config = write_config(tmp_path / "node.yaml", storage, ANY, "waltzctl.minFree: 4000000TB")
    with serving("--config", config) as node:
        assert "make room before appends fail" in health(node)
        write_config(config, storage, ANY, "waltzctl.minFree: 0")
        node.signal(signal.SIGHUP)
        node.wait_log("waltzctl.minFree is 0 now")
        while '"healthy":true' not in health(node):  # a look at the disk is believed for a second
            pass
        assert node.stop() == 0
    (said,) = [
        one
        for one in run("serve", storage, "--min-free", "1GiB", "--show-config", "--format", "ndjson").objects
        if one["key"] == "waltzctl.minFree"
    ]
    assert (said["value"], said["source"]) == (1 << 30, "--min-free")
    (said,) = [
        one
        for one in run("serve", storage, "--show-config", "--format", "ndjson", WALTZCTL_SERVE_MIN_FREE="0").objects
        if one["key"] == "waltzctl.minFree"
    ]
    assert (said["value"], said["source"]) == (0, "WALTZCTL_SERVE_MIN_FREE")


def test_a_killed_node_leaves_its_ready_file_and_the_next_one_replaces_it(storage: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with serving(storage, *FREE, "--ready-file", ready) as node:
        node.signal(signal.SIGKILL)
        assert node.ended() == -signal.SIGKILL
    old = json.loads(ready.read_text())
    with serving(storage, *FREE, "--ready-file", ready) as node:
        assert json.loads(ready.read_text()) == node.ready
        assert node.ready["pid"] != old["pid"]
        assert node.stop() == 0
    assert not ready.exists()


@pytest.mark.turns(10)
def test_a_start_removes_the_ready_file_of_a_process_that_is_gone_before_anything_else(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ready = tmp_path / "ready"
    ready.write_text(json.dumps({"pid": gone.pid}))
    assert run("serve", tmp_path / "none", *FREE, "--ready-file", ready).status == 10
    assert not ready.exists()
    for contents in (json.dumps({"pid": os.getpid()}), "something else", "[" * 60_000):
        ready.write_text(contents)
        assert run("serve", tmp_path / "none", *FREE, "--ready-file", ready).status == 10
        assert ready.read_text() == contents


def test_a_process_that_stops_without_a_free_descriptor_leaves_no_ready_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections have all of them, until they are closed."""
    path = tmp_path / "ready.json"
    path.write_text(json.dumps({"pid": os.getpid()}))
    nothing: Any = None
    notifier: Any = SimpleNamespace(stopping=lambda *_: None)
    log: Any = SimpleNamespace(logger=logging.getLogger(__name__))
    kind: Any = SimpleNamespace(ports=lambda _: SimpleNamespace(drain_seconds=1.0))
    configuration: Any = SimpleNamespace(options=None)

    def none_left(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "none left")

    async def stop(_seconds: float) -> None:
        assert path.exists()
        monkeypatch.undo()

    async def work() -> None:
        service: Service[Any, Any] = Service(kind, configuration, nothing, log, notifier, nothing, ReadyFile(path))
        monkeypatch.setattr(disk, "read_range", none_left)
        await service._stop(SimpleNamespace(stop=stop))

    asyncio.run(work())
    assert not path.exists()


# --- service managers ----------------------------------------------------------------------------------------------------


def test_systemd_is_told_of_every_state(storage: Path, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE)

        def hears(state: str) -> dict[str, str]:
            while True:
                heard = dict(line.split("=", 1) for line in manager.recv(65536).decode().split("\n"))
                if state in heard:
                    return heard

        with serving(storage, *FREE, NOTIFY_SOCKET=str(address), WATCHDOG_USEC="200000") as node:
            assert f"serving {storage} at 127.0.0.1:{node.ready['port']}" == hears("READY")["STATUS"]
            hears("WATCHDOG")
            hears("WATCHDOG")
            node.signal(signal.SIGHUP)
            assert "MONOTONIC_USEC" in hears("RELOADING")
            hears("READY")
            node.signal(signal.SIGTERM)
            hears("STOPPING")
            assert node.ended() == 0


@pytest.mark.turns(8)
def test_a_watchdog_does_not_wait_for_whoever_reads_that_the_node_is_ready() -> None:
    """The manager killed the node, which served, before anybody told it that it lives."""
    fed, answered = threading.Event(), threading.Event()
    notifier: Any = SimpleNamespace(ready=lambda _: None, stopping=lambda *_: None, alive=fed.set, watchdog_seconds=0.1)

    async def stop(_seconds: float) -> None:
        pass

    async def start(*_: object) -> Any:
        return SimpleNamespace(ready_info=None, stop=stop)

    ports = SimpleNamespace(beyond_loopback=False, drain_seconds=1.0, graphite=None)
    kind: Any = SimpleNamespace(
        start=start,
        before=lambda _: (),
        ports=lambda _: ports,
        status=lambda _: "",
        ready=SimpleNamespace(shown=lambda _: {}),
    )
    shown: Any = SimpleNamespace(ready=lambda *_: answered.wait(60), live=None)
    configuration: Any = SimpleNamespace(options=None, notes=())
    log: Any = SimpleNamespace(logger=logging.getLogger(__name__))
    nothing: Any = None

    async def work() -> None:
        service: Service[Any, Any] = Service(kind, configuration, nothing, log, notifier, shown)
        serving = asyncio.ensure_future(service.run())
        await asyncio.wait({serving}, timeout=1)
        assert fed.is_set()
        answered.set()
        service._stop_requested.set()
        assert await serving == 0

    try:
        asyncio.run(work())
    finally:
        answered.set()


def test_without_a_terminal_and_format_it_prints_plain_lines(storage: Path) -> None:
    process = warm_start.Popen(
        command_line("serve", storage, *FREE), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    assert process.stdout is not None
    heading, line = process.stdout.readline().decode(), process.stdout.readline().decode()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    assert heading.startswith("# ready\tpid\thost\tport\t")
    assert line.split("\t")[:3] == ["ready", str(process.pid), "127.0.0.1"]
