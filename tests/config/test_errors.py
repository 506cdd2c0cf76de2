"""Every wrong input causes one clear line with place, key, problem and remedy."""

from pathlib import Path

import pytest

from hpcelastic.config import from_mapping, load
from hpcelastic.config.overrides import Override
from hpcelastic.errors import ConfigError

RUNS = "entrypoint: {script: train.py}\n"
ALL_KEYS = (
    "run, entrypoint, nodes, workers, rendezvous, restarts, logs, network, health, hangs, stragglers, environment, "
    "exporters, slurm"
)

FILES = {
    # the text of the file
    "empty": ("", "job.yaml: is empty; write at least an entry point, such as entrypoint: {script: train.py}"),
    "only comments": (
        "# nothing\n",
        "job.yaml: is empty; write at least an entry point, such as entrypoint: {script: train.py}",
    ),
    "a list": (
        "- a\n",
        "job.yaml:1: has a list, not keys; write lines KEY: VALUE, with a space after the colon, "
        "such as entrypoint: {script: train.py}",
    ),
    "no space after the colon": (
        "\nnodes:3\n",
        "job.yaml:2: has text, not keys; write lines KEY: VALUE, with a space after the colon, "
        "such as entrypoint: {script: train.py}",
    ),
    "tab": (
        "run:\n\tname: a\n",
        "job.yaml:2:1: is not valid YAML: while scanning for the next token "
        "found character '\\t' that cannot start any token; indent with spaces, not with tabs",
    ),
    "colon in a value": (
        "run: {}\nnodes: a: b\n",
        "job.yaml:2:9: is not valid YAML: mapping values are not allowed here; "
        "quote a value that contains ': ', and check the indentation",
    ),
    "open bracket": (
        "nodes: [1\n",
        "job.yaml:2:1: is not valid YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'; "
        "close the bracket, and write commas between the items",
    ),
    "open quote": (
        "run: {name: 'a}\n",
        "job.yaml:2:1: is not valid YAML: while scanning a quoted scalar found unexpected end of stream; "
        "close the quotation mark",
    ),
    "special character": (
        "run: {name: @a}\n",
        "job.yaml:1:13: is not valid YAML: while scanning for the next token found character '@' "
        "that cannot start any token; quote a value that begins with a special character",
    ),
    "bad indentation": (
        "run:\n   name: a\n  directory: b\n",
        "job.yaml:3:3: is not valid YAML: while parsing a block mapping expected <block end>, "
        "but found '<block mapping start>'; check the indentation and the brackets of this line and of the line before",
    ),
    "unknown anchor": (
        "nodes: *\n",
        "job.yaml:1:9: is not valid YAML: while scanning an alias expected alphabetic or numeric character, "
        "but found '\\n'; check the quotes and the indentation",
    ),
    "two documents": (
        RUNS + "---\n" + RUNS,
        "job.yaml:2:1: is not valid YAML: expected a single document in the stream but found another document; "
        "write one job in each file, without a line ---",
    ),
    "forbidden character": (
        "run: \x00\n",
        "job.yaml:1:1: is not valid YAML: unacceptable character #x0000: special characters are not allowed; "
        "remove the character, or write an escape sequence",
    ),
    "alias inside its anchor": (
        "run: &a [*a]\n",
        "job.yaml: is nested without end; remove the alias inside its own anchor",
    ),
    "tag": (RUNS + "nodes: !two 2\n", "job.yaml:2: nodes: has the tag !two; write a plain value without a tag"),
    "list as a key": (
        RUNS + "? [a]\n: b\n",
        "job.yaml:2: has a list or a mapping as a key; write KEY: VALUE with a text key",
    ),
    "key given twice": (
        RUNS + "nodes: 2\nnodes: 3\n",
        "job.yaml:3: nodes: is given twice, first at line 2; remove one of them",
    ),
    # keys
    "nothing to run": (
        "nodes: 2\n",
        "job.yaml:1: entrypoint: is missing; write what to run, such as entrypoint: {script: train.py}",
    ),
    "misspelt group": (RUNS + "wrokers: {}\n", "job.yaml:2: wrokers: no such key; did you mean workers?"),
    "misspelt key": (
        RUNS + "workers:\n  per_nod: 3\n",
        "job.yaml:3: workers.per_nod: no such key; did you mean workers.per_node?",
    ),
    "dashes": (
        RUNS + "slurm: {gpus-per-node: 3}\n",
        "job.yaml:2: slurm.gpus-per-node: no such key; write slurm.gpus_per_node",
    ),
    "key of another group": (RUNS + "time: 30\n", "job.yaml:2: time: no such key; write slurm.time"),
    "key of two groups": (RUNS + "max: 3\n", "job.yaml:2: max: no such key; write nodes.max or restarts.max"),
    "misspelt key of another group": (
        RUNS + "partitoin: a\n",
        "job.yaml:2: partitoin: no such key; did you mean slurm.partition?",
    ),
    "name of torchrun": (RUNS + "max_restarts: 3\n", "job.yaml:2: max_restarts: no such key; write restarts.max"),
    "flag of torchrun": (
        RUNS + "--nproc-per-node: 3\n",
        "job.yaml:2: --nproc-per-node: no such key; write workers.per_node",
    ),
    "name of sbatch": (RUNS + "slurm: {mem: 3G}\n", "job.yaml:2: slurm.mem: no such key; write slurm.memory"),
    "other option of sbatch": (
        RUNS + "slurm: {mail-type: END}\n",
        "job.yaml:2: slurm.mail-type: no such key; if sbatch has this option, write slurm.options.mail-type",
    ),
    "no similar key": (RUNS + "quux: 3\n", f"job.yaml:2: quux: no such key; the keys here are {ALL_KEYS}"),
    "no similar key in the group": (
        RUNS + "logs: {quux: 3}\n",
        "job.yaml:2: logs.quux: no such key; the keys under logs are redirect, tee, prefix, local_ranks, "
        "match_out, match_err, directory, keep_rounds",
    ),
    # types
    "group is a number": (
        RUNS + "restarts: 3\n",
        "job.yaml:2: restarts: is 3; write its keys below it: max, refill_interval, refill_steps, identical",
    ),
    "group is text": (
        "entrypoint: train.py\n",
        "job.yaml:1: entrypoint: is the text 'train.py'; write its keys below it: script, module, function, "
        "program, args",
    ),
    "quoted number": (
        RUNS + "workers: {stop_grace: '3'}\n",
        "job.yaml:2: workers.stop_grace: is the text '3'; write a number, without quotes",
    ),
    "fraction": (RUNS + "restarts: {max: 1.5}\n", "job.yaml:2: restarts.max: is 1.5; write a whole number"),
    "infinity": (
        RUNS + "rendezvous: {lease: 1e999}\n",
        "job.yaml:2: rendezvous.lease: is Infinity; write a number or auto",
    ),
    "yes": (
        RUNS + "slurm: {requeue: yes}\n",
        "job.yaml:2: slurm.requeue: is the text 'yes'; write true or false",
    ),
    "truth value for a number": (
        RUNS + "workers: {per_node: true}\n",
        "job.yaml:2: workers.per_node: is true; write a whole number or auto",
    ),
    "truth value for text": (RUNS + "slurm: {partition: true}\n", "job.yaml:2: slurm.partition: is true; write text"),
    "not one of the choices": (
        RUNS + "logs: {tee: all}\n",
        "job.yaml:2: logs.tee: is the text 'all'; write none, out, err, both or lines KEY: VALUE below it",
    ),
    "text for a list": (
        RUNS + "slurm: {setup: module load cuda}\n",
        "job.yaml:2: slurm.setup: is the text 'module load cuda'; write a list, such as [a, b]",
    ),
    "list for a mapping": (
        RUNS + "environment: [A=1]\n",
        "job.yaml:2: environment: is a list; write lines KEY: VALUE below it",
    ),
    "empty value": (RUNS + "restarts:\n  max:\n", "job.yaml:3: restarts.max: is empty; write a whole number"),
    "empty variable": (RUNS + "environment:\n  A:\n", "job.yaml:3: environment.A: is empty; write text"),
    "list as an argument": (
        "entrypoint:\n  module: a\n  args:\n  - b\n  - [c]\n",
        "job.yaml:5: entrypoint.args[1]: is a list; write text, a number, true or false",
    ),
    # values
    "nodes backwards": (
        RUNS + "nodes: 4..2\n",
        "job.yaml:2: nodes.min: is 4, more than nodes.max, 2; write MIN..MAX",
    ),
    "no nodes": (RUNS + "nodes: 0\n", "job.yaml:2: nodes.min: is 0; a round needs at least 1 node"),
    "nodes in words": (
        RUNS + "nodes: two\n",
        "job.yaml:2: nodes: is the text 'two'; write a number such as 4, or MIN..MAX such as 2..4",
    ),
    "nodes as a list": (
        RUNS + "nodes: [2, 4]\n",
        "job.yaml:2: nodes: is a list; write a number such as 4, or MIN..MAX such as 2..4",
    ),
    "two entry points": (
        "entrypoint: {script: train.py, module: a}\n",
        "job.yaml:1: entrypoint: has script and module; give exactly one of script, module, function and program",
    ),
    "no entry point": (
        "entrypoint: {args: [a]}\n",
        "job.yaml:1: entrypoint: has no script, module, function or program; give exactly one of "
        "script, module, function and program",
    ),
    "function without a module": (
        "entrypoint: {function: train}\n",
        "job.yaml:1: entrypoint.function: is 'train'; write package.module:function",
    ),
    "no workers": (
        RUNS + "workers:\n  stop_grace: 1\n  per_node: 0\n",
        "job.yaml:4: workers.per_node: is 0; it must be auto, or 1 or more",
    ),
    "no local rank": (
        RUNS + "logs: {redirect: {first: out}}\n",
        "job.yaml:2: logs.redirect: has 'first', which is not a local rank; write {0: out, 1: both}",
    ),
    "negative local rank": (
        RUNS + "logs: {local_ranks: [0, -1]}\n",
        "job.yaml:2: logs.local_ranks: has -1; local ranks begin with 0",
    ),
    "text that every line has": (
        RUNS + "logs: {match_out: [a, '']}\n",
        "job.yaml:2: logs.match_out: has '', which every line contains; give a text to search",
    ),
    "no directory of logs": (
        RUNS + "logs: {directory: ''}\n",
        "job.yaml:2: logs.directory: is ''; name a directory, or leave it out",
    ),
    "no logs": (
        RUNS + "logs: {keep_rounds: 0}\n",
        "job.yaml:2: logs.keep_rounds: is 0; give at least 1, or null for all",
    ),
    "no role": (RUNS + "workers: {role: ''}\n", "job.yaml:2: workers.role: is ''; write a name, such as trainer"),
    "signal of the agent": (
        RUNS + "workers: {forward_signals: [SIGTERM]}\n",
        "job.yaml:2: workers.forward_signals: has 'SIGTERM': the agent needs it itself; "
        "SIGUSR1, SIGUSR2, SIGHUP, SIGCONT can be forwarded",
    ),
    "exporter without function": (
        RUNS + "exporters: [metrics.py]\n",
        "job.yaml:2: exporters: has 'metrics.py'; write package.module:function",
    ),
    "preload that is a file": (
        RUNS + "workers: {preload: [my-models.py]}\n",
        "job.yaml:2: workers.preload: has 'my-models.py', which is not the name of a module; write torch, for example",
    ),
    "slow poll": (
        RUNS + "rendezvous:\n  lease: 2\n  poll: 1\n",
        "job.yaml:4: rendezvous.poll: is 1.0 s; it must be at most a quarter of rendezvous.lease (2.0 s), "
        "so that no live node is declared dead",
    ),
    "name with a space": (
        RUNS + "run:\n  name: a b\n",
        "job.yaml:3: run.name: is 'a b'; use up to 100 letters, digits, '.', '_' and '-', "
        "and begin with a letter or a digit, because it is the name of a directory and of a SLURM job",
    ),
    "name that climbs": (
        RUNS + "run: {name: ..}\n",
        "job.yaml:2: run.name: is '..'; use up to 100 letters, digits, '.', '_' and '-', "
        "and begin with a letter or a digit, because it is the name of a directory and of a SLURM job",
    ),
    "no directory": (
        RUNS + "run: {directory: ''}\n",
        "job.yaml:2: run.directory: is ''; write a directory that every node sees, or . for the working directory",
    ),
    "variable with a dash": (
        RUNS + "environment:\n  A: 1\n  A-B: 2\n",
        "job.yaml:4: environment.A-B: is not a valid variable name; use letters, digits and '_', and no digit first",
    ),
    "time in hours": (
        RUNS + "slurm: {time: 1h}\n",
        "job.yaml:2: slurm.time: is '1h'; write MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED",
    ),
    "no time at all": (
        RUNS + "slurm: {time: 0}\n",
        "job.yaml:2: slurm.time: is '0'; it must be more than 0; write UNLIMITED for no limit, or remove it",
    ),
    "no time at all for the run": (
        RUNS + "run: {total_time: 0-00:00:00}\n",
        "job.yaml:2: run.total_time: is '0-00:00:00'; it must be more than 0; "
        "write UNLIMITED for no limit, or remove it",
    ),
    "memory in words": (
        RUNS + "slurm: {memory: lots}\n",
        "job.yaml:2: slurm.memory: is 'lots'; write a number and a unit, such as 64G",
    ),
    "gpus in words": (
        RUNS + "slurm: {gpus_per_node: all}\n",
        "job.yaml:2: slurm.gpus_per_node: is 'all'; write a number, or TYPE:NUMBER such as a100:4",
    ),
    "no cpus": (RUNS + "slurm: {cpus_per_node: 0}\n", "job.yaml:2: slurm.cpus_per_node: is 0; it must be 1 or more"),
    "option with a key of its own": (
        RUNS + "slurm:\n  options:\n    mem: 3G\n",
        "job.yaml:4: slurm.options.mem: has a dedicated key; write slurm.memory",
    ),
    "option of one letter": (
        RUNS + "slurm: {options: {p: gpu}}\n",
        "job.yaml:2: slurm.options.p: is not a long option of sbatch; write its full name, such as mail-type",
    ),
    "option of two lines": (
        RUNS + 'slurm: {options: {comment: "a\\nb"}}\n',
        "job.yaml:2: slurm.options.comment: is 'a\\nb'; sbatch accepts no line break, tab or backslash; remove '\\n'",
    ),
    "backslash in a list": (
        RUNS + "slurm: {options: {comment: [a, 'b\\c']}}\n",
        "job.yaml:2: slurm.options.comment: is 'b\\\\c'; sbatch accepts no line break, tab or backslash; remove '\\\\'",
    ),
    "line break in a key": (
        RUNS + 'slurm: {account: "a\\nb"}\n',
        "job.yaml:2: slurm.account: is 'a\\nb'; sbatch accepts no line break, tab or backslash; remove '\\n'",
    ),
    "option of a wrong type": (
        RUNS + "slurm: {options: {comment: {a: 1}}}\n",
        "job.yaml:2: slurm.options.comment: is a mapping; write text, a whole number, true, false or a list",
    ),
    "array": (
        RUNS + "slurm: {options: {array: 0-3}}\n",
        "job.yaml:2: slurm.options.array: has a dedicated key; write slurm.shape: pool",
    ),
    "another cluster": (
        RUNS + "slurm: {options: {clusters: east}}\n",
        "job.yaml:2: slurm.options.clusters: is not supported: the commands and agents of a run ask the cluster that "
        "they run on; log in there, and submit without it",
    ),
    "no-kill": (
        RUNS + "slurm: {options: {no-kill: 'off'}}\n",
        "job.yaml:2: slurm.options.no-kill: is not allowed: hpcelastic sets it for slurm.shape; remove it",
    ),
    "option that endangers survivors": (
        RUNS + "slurm: {srun_options: {kill-on-bad-exit: 1}}\n",
        "job.yaml:2: slurm.srun_options.kill-on-bad-exit: is not allowed: hpcelastic sets it so that the other "
        "nodes continue when a node dies; remove it",
    ),
    "number of tasks": (
        RUNS + "slurm: {srun_options: {ntasks: 2}}\n",
        "job.yaml:2: slurm.srun_options.ntasks: is not allowed: hpcelastic runs one agent on each node of the "
        "job; remove it",
    ),
    "container by hand": (
        RUNS + "slurm: {srun_options: {container-image: a}}\n",
        "job.yaml:2: slurm.srun_options.container-image: is an option of containers; write it under slurm.container",
    ),
    "mount": (
        RUNS + "slurm: {container: {image: a, mounts: [data]}}\n",
        "job.yaml:2: slurm.container.mounts: has 'data'; write absolute paths: /DIRECTORY, /FROM:/TO or /FROM:/TO:ro",
    ),
    "runtime": (
        RUNS + "slurm: {container: {image: a, runtime: docker}}\n",
        "job.yaml:2: slurm.container.runtime: is the text 'docker'; write apptainer, singularity or pyxis",
    ),
    "option of a container": (
        RUNS + "slurm: {container: {image: a, options: {--nv: true}}}\n",
        "job.yaml:2: slurm.container.options.--nv: is not a long option of apptainer; write its full name, such as nv",
    ),
    "option with dashes": (
        RUNS + "slurm: {options: {--Mail_Type: END}}\n",
        "job.yaml:2: slurm.options.--Mail_Type: is not a long option of sbatch; write its full name, such as mail-type",
    ),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_an_error_in_a_file_has_line_and_key(text: str, message: str) -> None:
    Path("job.yaml").write_text(text, encoding="utf-8")
    assert error_of("job.yaml") == message


OVERRIDES: dict[str, tuple[list[Override], str]] = {
    "misspelt": (
        ["nodes=2", "rendezvous.lese=5"],
        "override 2: rendezvous.lese=5: no such key; did you mean rendezvous.lease?",
    ),
    "misspelt group": (
        ["rendevous.lease=5"],
        "override 1: rendevous.lease=5: rendevous: no such key; did you mean rendezvous?",
    ),
    "misspelt inside the value": (
        ["logs={te: both}"],
        "override 1: logs={te: both}: logs.te: no such key; did you mean logs.tee?",
    ),
    "no value": (["nodes"], "override 1: nodes: is not an override; write KEY=VALUE, such as rendezvous.lease=5"),
    "no key": (["=3"], "override 1: =3: is not an override; write KEY=VALUE, such as rendezvous.lease=5"),
    "empty value": (["restarts.max="], "override 1: restarts.max=: is empty; write a whole number"),
    "no YAML": (
        ["run.name=@a"],
        "override 1: run.name=@a: the value is not valid YAML: while scanning for the next token "
        "found character '@' that cannot start any token; quote a value that begins with a special character",
    ),
    "below a value": (
        ["run.name.first=a"],
        "override 1: run.name.first=a: run.name has no keys below it; write its whole value",
    ),
    "out of range": (["nodes.min=4"], "override 1: nodes.min=4: is 4, more than nodes.max, 3; write MIN..MAX"),
    "keyword": (
        [("restarts.max", "3")],
        "override 1: restarts.max=3: is the text '3'; write a whole number, without quotes",
    ),
    "keyword of a strange type": (
        [("restarts.max", 3j)],
        "override 1: restarts.max=3j: is of type complex; use text, a number, true or false, a list or a dict",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), OVERRIDES.values(), ids=OVERRIDES)
def test_an_error_in_an_override_has_its_number(overrides: list[Override], message: str) -> None:
    Path("job.yaml").write_text(RUNS + "nodes: 1..3\nrun: {name: a}\n")
    assert error_of("job.yaml", overrides) == message


MAPPINGS: dict[str, tuple[dict[object, object], str]] = {
    "missing": ({}, "entrypoint: is missing; write what to run, such as entrypoint: {script: train.py}"),
    "unknown": ({"entrypoint": {"module": "a"}, "nnodes": 3}, "nnodes: no such key; write nodes"),
    "strange key": ({"entrypoint": {"module": "a"}, 3: 4}, "3: the key is 3; write a key that is text"),
    "strange value": (
        {"entrypoint": {"module": "a", "args": [b"a"]}},
        "entrypoint.args[0]: is of type bytes; use text, a number, true or false, a list or a dict",
    ),
    "lone surrogate": (
        {"entrypoint": {"module": "\ud800"}},
        "entrypoint.module: contains half of a surrogate pair, which is not a character; remove it",
    ),
}


@pytest.mark.parametrize(("mapping", "message"), MAPPINGS.values(), ids=MAPPINGS)
def test_an_error_in_a_mapping_has_its_key(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_mapping(mapping)
    assert str(error.value) == message


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    Path("job.yaml").write_text(
        "slurm: {foo: 1}\nentrypoint: {script: tran.py}\nnodes: 2\nnodes: 3\nlogs: {tee: 1}\nrestarts: {max: -1}\n"
    )
    assert error_of("job.yaml", ["nodse=1"]).splitlines() == [
        "job.yaml:1: slurm.foo: no such key; if sbatch has this option, write slurm.options.foo",
        f"job.yaml:2: entrypoint.script: there is no file {Path('tran.py').absolute()}; did you mean train.py?",
        "job.yaml:4: nodes: is given twice, first at line 3; remove one of them",
        "job.yaml:5: logs.tee: is 1; write none, out, err, both or lines KEY: VALUE below it",
        "job.yaml:6: restarts.max: is -1; it must be 0 or more",
        "override 1: nodse=1: no such key; did you mean nodes?",
    ]


def test_a_group_with_an_unknown_key_is_checked() -> None:
    Path("job.yaml").write_text(
        RUNS + "slurm:\n  time: banana\n  foo: 1\nwrokers: {}\nlogs: {keep_round: 1, keep_rounds: 0}\n"
    )
    assert error_of("job.yaml").splitlines() == [
        "job.yaml:3: slurm.time: is 'banana'; write MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED",
        "job.yaml:4: slurm.foo: no such key; if sbatch has this option, write slurm.options.foo",
        "job.yaml:5: wrokers: no such key; did you mean workers?",
        "job.yaml:6: logs.keep_round: no such key; did you mean logs.keep_rounds?",
        "job.yaml:6: logs.keep_rounds: is 0; give at least 1, or null for all",
    ]


def error_of(path: str, overrides: list[Override] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        load(path, overrides or [])
    return str(error.value)
