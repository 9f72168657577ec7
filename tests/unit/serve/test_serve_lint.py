"""What systemd misreads: quoting that survives it, and a lint that sees what it does not say."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyrie.core.errors import EyrieError
from eyrie.serve import lint, quoting

CONFIG = {"method": "eagle3", "model": "/models/draft dir", "num_speculative_tokens": 3}
WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30)


def service(body, unit="", more="LimitNOFILE=1048576\nLogRateLimitIntervalSec=0\n"):
    return f"[Unit]\nDescription=toy\n{unit}\n[Service]\n{more}{body}\n[Install]\nWantedBy=multi-user.target\n"


def codes(text):
    return [finding.code for finding in lint.unit(text)]


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_any_words_survive_the_reading(words):
    line = " ".join(quoting.quote(word) for word in words)
    assert quoting.resolve(line) == words
    assert not {"quotes", "percent"} & set(codes(service(f"ExecStart=/bin/echo {line}")))


@given(st.dictionaries(WORDS, WORDS, max_size=4))
def test_any_mapping_survives_as_json(value):
    word = quoting.quote(json.dumps(value))
    assert json.loads(quoting.resolve(f"/bin/echo {word}")[1]) == value
    assert codes(service(f"ExecStart=/bin/echo {word}")) == []


@pytest.mark.parametrize("model", ["/models/it's here", "/models/100%", "/models/$HOME", "/m/back\\slash", 'say "hi"'])
def test_awkward_values_come_back(model):
    word = quoting.quote(json.dumps({"model": model}))
    assert json.loads(quoting.resolve(word)[0]) == {"model": model}
    assert codes(service(f"ExecStart=/bin/echo {word}")) == []


def test_a_variable_is_only_doubled_in_commands():
    assert quoting.quote("a$b") == "'a$$b'"
    assert quoting.quote("a$b", command=False) == "'a$b'"
    with pytest.raises(ValueError, match="NUL"):
        quoting.quote("a\0b")


@pytest.mark.parametrize(
    "argument",
    [
        json.dumps(CONFIG),  # no quotes around it: systemd takes the inner ones away
        '"' + json.dumps(CONFIG) + '"',  # double quotes inside double quotes
        '"' + str(CONFIG) + '"',  # a Python mapping, single quotes
    ],
)
def test_lost_json_is_an_error(argument):
    assert "json-lost" in codes(service(f"ExecStart=/bin/echo --speculative-config {argument}"))
    assert codes(service(f"ExecStart=/bin/echo --speculative-config '{json.dumps(CONFIG)}'")) == []


def test_an_open_quote_is_an_error():
    assert codes(service("ExecStart=/bin/echo 'open")) == ["quotes"]
    assert codes(service('ExecStart=/bin/true\nEnvironment="A=b')) == ["quotes"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('Environment="NOTE=50%done"', ["percent"]),
        ("ExecStart=/bin/echo 80%acc", ["percent"]),
        ("ExecStart=/bin/echo '%Y-%m'", ["percent", "percent"]),
        ("ExecStart=/bin/echo 100%", ["percent"]),
        ('Environment="NOTE=50%%done"', []),
        ("ExecStart=/bin/echo %i %n %%", []),
        ("Environment=TOKEN_FILE=%d/token", []),
        ("WorkingDirectory=%h", []),
    ],
)
def test_a_percent_is_doubled_or_meant(line, expected):
    assert codes(service(line if line.startswith("Exec") else f"ExecStart=/bin/true\n{line}")) == expected


def test_an_assignment_that_systemd_drops_is_an_error():
    assert codes(service("ExecStart=/bin/true\nEnvironment=PLAIN=a b")) == ["assignment-lost"]
    assert codes(service('ExecStart=/bin/true\nEnvironment="PLAIN=a b" OTHER=c')) == []


RESTART = "ExecStart=/bin/true\nRestart=on-failure\nRestartSec=10\nTimeoutStartSec=2700"


@pytest.mark.parametrize(
    ("top", "body", "expected"),
    [
        ("", RESTART + "\nStartLimitIntervalSec=3600\nStartLimitBurst=3", ["start-limit-section"] * 2),
        ("StartLimitIntervalSec=10\nStartLimitBurst=5", RESTART, ["start-limit"]),
        ("StartLimitIntervalSec=3h\nStartLimitBurst=3", RESTART, []),
        ("", RESTART, ["start-limit"]),
        ("", "ExecStart=/bin/true\nRestart=no", []),
    ],
)
def test_start_limits_that_can_be_reached(top, body, expected):
    assert codes(service(body, top)) == expected


def test_stopping_ends_every_process_and_takes_its_time():
    bad = "ExecStart=/bin/serve --shutdown-timeout 60\nTimeoutStopSec=5\nKillMode=process"
    assert sorted(codes(service(bad))) == ["kill-mode", "stop-timeout"]
    assert codes(service("ExecStart=/bin/serve --shutdown-timeout 300\nTimeoutStopSec=180")) == ["stop-timeout"]
    short = lint.unit(service("ExecStart=/bin/serve\nTimeoutStopSec=30"))
    assert [(finding.level, finding.code) for finding in short] == [("warning", "stop-timeout")]
    assert codes(service("ExecStart=/bin/serve\nTimeoutStopSec=2min\nKillMode=control-group")) == []


def test_files_log_rate_and_caches():
    assert codes(service("ExecStart=/bin/true", more="")) == ["files", "log-rate"]
    appended = "LimitNOFILE=9999\nStandardOutput=append:/var/log/x\n"
    assert codes(service("ExecStart=/bin/true", more=appended)) == []
    assert codes(service("ExecStart=/usr/bin/vllm serve toy")) == ["hf-home"]
    assert codes(service("ExecStart=/usr/bin/vllm serve toy\nEnvironment=HF_HOME=/data/hf HOME=/data")) == []


def test_continued_lines_and_comments_are_read_as_one():
    text = service("ExecStart=/bin/echo one \\\n# between\n  '{\"a\":1}' \\\n  80%acc")
    findings = lint.unit(text)
    assert [finding.code for finding in findings] == ["percent"]
    assert findings[0].line == 7


ENV = """# comment
export A=1
B=30 # inline
C=two words
D="quoted words"
E='single'
F={"k":"v"}
G=$HOME/x
H=line \\
continued
 I=leading
"""


def test_an_environment_file_is_no_script():
    found = [(finding.line, finding.code) for finding in lint.environment(ENV)]
    assert found == [(2, "no-name"), (3, "inline-comment"), (8, "not-expanded")]
    values = {name: value for _, name, value in lint.assignments(ENV)}
    assert values["C"] == "two words"
    assert values["D"] == "quoted words"
    assert values["F"] == '{"k":"v"}'
    assert values["H"] == "line continued"
    assert values["I"] == "leading"


def test_files_are_told_apart_and_errors_name_the_line(tmp_path):
    good, bad, env = tmp_path / "a.service", tmp_path / "b.service", tmp_path / "c.env"
    good.write_text(service("ExecStart=/bin/true"))
    bad.write_text(service("ExecStart=/bin/echo 80%acc"))
    env.write_text("A=1\n")
    assert lint.files([good, env])["ok"]
    with pytest.raises(EyrieError) as caught:
        lint.files([good, bad])
    assert caught.value.code == "unit-lint"
    assert f"{bad}:7:" in caught.value.what


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("3h 20min", 12000), ("1.5s", 1.5), ("infinity", math.inf)])
def test_time_spans(text, value):
    assert lint.seconds(text) == value
