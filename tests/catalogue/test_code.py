"""Options in Python files: a name counts where one value reaches it, and a default is said to be one."""

import json

import pytest

from tests.support.refusals import refuses
from ustat_pg.catalogue import resolve, resolve_all

CONFIG = "GRPOConfig(num_generations=n)\n"

SIX = {
    "an assignment": "n = 6\n" + CONFIG,
    "the last of two assignments in a row": "n = 2\nn = 6\n" + CONFIG,
    "both branches": "if x:\n    n = 6\nelse:\n    n = 6\n" + CONFIG,
    "the only branch that goes on": "if x:\n    n = 6\nelse:\n    raise ValueError\n" + CONFIG,
    "the main program": "if __name__ == '__main__':\n    n = 6\n    " + CONFIG,
    "a switch that is off": "n, fast = 6, False\nif fast:\n    n = 2\n" + CONFIG,
    "a pair": "n, m = 6, x\n" + CONFIG,
    "a sum": "a, b = 2, 3\nn = a * b\n" + CONFIG,
    "a choice": "n = 2 if False else 6\n" + CONFIG,
    "a walrus": "print(n := 6)\n" + CONFIG,
    "a constant in a function": "n = 6\ndef f():\n    return " + CONFIG,
    "an argument of the only call": f"def f(n):\n    {CONFIG}f(6)\n",
    "an argument by name": f"def f(m, n=2):\n    {CONFIG}f(m, n=6)\n",
    "a method": f"class T:\n    def f(self, n):\n        {CONFIG}T().f(6)\n",
    "what a function returns": "def f():\n    return 6\nn = f()\n" + CONFIG,
    "an async main": f"async def f(n):\n    {CONFIG}asyncio.run(f(6))\n",
    "a class's attribute": "class C:\n    n = 6\nGRPOConfig(num_generations=C.n)",
    "an object's attribute": (
        "class C:\n    def __init__(self, n):\n        self.n = n\n"
        "c = C(6)\nGRPOConfig(num_generations=c.n)"
    ),
    "a namespace": "from types import SimpleNamespace\nc = SimpleNamespace(n=6)\n"
    "GRPOConfig(num_generations=c.n)",
    "a dict": "c = {'num_generations': 6}\nGRPOConfig(**c)",
    "a call of dict": "c = dict(num_generations=6)\nGRPOConfig(**c)",
    "an item": "c = {'n': 6, 'm': x}\nGRPOConfig(num_generations=c['n'])",
    "an item by get": "c = {'n': 6, 'm': x}\nGRPOConfig(num_generations=c.get('n', 8))",
    "a dict with a new item": "c = {'num_generations': 2}\nc['num_generations'] = 6\nGRPOConfig(**c)",
    "a dict's update": "c = {'num_generations': 2}\nc.update(num_generations=6)\nGRPOConfig(**c)",
    "a dict in a dict": "c = {'num_generations': 6}\nGRPOConfig(**{'beta': 0.0, **c})",
    "a joined dict": "c = {'num_generations': 2} | {'num_generations': 6}\nGRPOConfig(**c)",
    "a field that is set later": "c = GRPOConfig(num_generations=2)\nc.num_generations = 6\n",
    "another name of the class": "import trl\nC = trl.GRPOConfig\nC(num_generations=6)",
    "a name of an import": "from trl import GRPOConfig as C\nC(num_generations=6)",
    "a subclass": (
        "@dataclass\nclass C(GRPOConfig):\n    num_generations: int = 6\nC(output_dir='x')"
    ),
    "an import that may fail": (
        "try:\n    from trl import GRPOConfig\nexcept ImportError:\n    GRPOConfig = None\n"
        "GRPOConfig(num_generations=6)"
    ),
    "two alike": "GRPOConfig(num_generations=6)\nGRPOConfig(num_generations=6)",
    "a text in an f-string": "t = 'gr'\nGRPOConfig(num_generations=6, loss_type=f'{t}po')",
    "a comprehension's own name": "n = 6\n[n for n in x]\n" + CONFIG,
    "a function's own name": "n = 6\ndef f(x):\n    n = x\n" + CONFIG,
    "an escape that Python warns of": "t = '\\d'\nn = 6\n" + CONFIG,
    "the config that the trainer gets": (
        "a = GRPOConfig(num_generations=2)\nb = GRPOConfig(num_generations=6)\n"
        "GRPOTrainer(model=m, args=b)"
    ),
    "the last config of a name": (
        "c = GRPOConfig(num_generations=2)\nc = GRPOConfig(num_generations=6)\nT(m, c)"
    ),
    "a config with other options": (
        "from dataclasses import replace\na = GRPOConfig(num_generations=2)\n"
        "b = replace(a, num_generations=6)\nGRPOTrainer(args=b)"
    ),
    "a changed copy of a config": (
        "import copy\na = GRPOConfig(num_generations=2)\nb = copy.deepcopy(a)\n"
        "b.num_generations = 6\nGRPOTrainer(args=b)"
    ),
    "more arguments by name": (
        "def f(n, **more):\n    return GRPOConfig(num_generations=n, **more)\nf(6, beta=0.0)"
    ),
    "a dict that is printed": "c = {'num_generations': 6}\nprint(c)\nGRPOConfig(**c)",
}

UNKNOWN = {
    "a class's attribute that is set after an object": (
        "class C:\n    n = 4\nc = C()\nC.n = 6\nGRPOConfig(num_generations=c.n)"
    ),
    "another function's name": f"def f():\n    n = 6\ndef g():\n    {CONFIG}",
    "an argument": f"n = 6\ndef f(n):\n    {CONFIG}",
    "a default of an argument": f"def f(n=6):\n    {CONFIG}",
    "arguments of two calls": f"def f(n):\n    {CONFIG}f(6)\nf(2)\n",
    "a function that is passed on": f"def f(n):\n    {CONFIG}f(6)\nlaunch(f)\n",
    "a loop": "n = 6\nfor n in x:\n    " + CONFIG,
    "after a loop": "n = 6\nfor n in x:\n    pass\n" + CONFIG,
    "a counter": "n = 6\nwhile x:\n    n += 1\n" + CONFIG,
    "a loop that is left": "n = 6\nfor i in x:\n    n = 2\n    if i:\n        break\n    n = 6\n"
    + CONFIG,
    "unpacking": "n = 6\nn, m = x\n" + CONFIG,
    "unpacking with a star": "n = 6\nn, *m = 6, 7\n" + CONFIG,
    "an import": "n = 6\nfrom x import n\n" + CONFIG,
    "every name of an import": "n = 6\nfrom x import *\n" + CONFIG,
    "with": "n = 6\nwith x as n:\n    " + CONFIG,
    "an error": "n = 6\ntry:\n    x()\nexcept Exception as n:\n    pass\n" + CONFIG,
    "a try": "n = 2\ntry:\n    n = 6\n    x()\nexcept E:\n    pass\n" + CONFIG,
    "a branch": "n = 2\nif x:\n    n = 6\n" + CONFIG,
    "a branch alone": "if x:\n    n = 6\n" + CONFIG,
    "a walrus in a branch": "n = 2\nx and (n := 6)\n" + CONFIG,
    "a walrus in a comprehension": "n = 6\n[n := i for i in x]\n" + CONFIG,
    "a match": "n = 6\nmatch x:\n    case [n, *_]:\n        pass\n" + CONFIG,
    "an augmented assignment": "n = 6\nn += x\n" + CONFIG,
    "del": "n = 6\ndel n\n" + CONFIG,
    "global": f"n = 6\ndef f():\n    global n\n    n = 2\nf()\n{CONFIG}",
    "nonlocal": f"def f():\n    n = 6\n    def g():\n        nonlocal n\n        n = 2\n"
    f"    g()\n    {CONFIG}",
    "a constant with two values": f"n = 6\ndef f():\n    {CONFIG}f()\nn = 2\n",
    "a class's name in its method": f"class C:\n    n = 6\n    def f(self):\n        {CONFIG}",
    "a redefined function": "n = 6\ndef n():\n    pass\n" + CONFIG,
    "exec": "n = 6\nexec(x)\n" + CONFIG,
    "globals": "n = 6\nglobals()[x] = 2\n" + CONFIG,
    "a dict that goes away": "c = {'num_generations': 6}\nx(c)\nGRPOConfig(**c)",
    "a dict's other name": "c = {'num_generations': 6}\nd = c\nd['num_generations'] = x\nGRPOConfig(**c)",
    "a dict with an unknown item": "c = {'num_generations': 6}\nc[x] = 2\nGRPOConfig(**c)",
    "a dict with an unknown update": "c = {'num_generations': 6}\nc.update(x)\nGRPOConfig(**c)",
    "a dict that a branch changes": (
        "c = {'num_generations': 6}\nif x:\n    c['num_generations'] = 2\nGRPOConfig(**c)"
    ),
    "a dict that a function changes": (
        "c = {'num_generations': 6}\ndef f(d):\n    if x:\n        d['num_generations'] = 2\n"
        "f(c)\nGRPOConfig(**c)"
    ),
    "a dict that a method changes": (
        "c = {'num_generations': 6}\nclass T:\n    def f(self):\n        c['num_generations'] = 2\n"
        "def g():\n    GRPOConfig(**c)"
    ),
    "a field that is set to the unknown": "c = GRPOConfig(num_generations=6)\nc.num_generations = x\n",
    "a field by an unknown name": "c = GRPOConfig(num_generations=6)\nsetattr(c, x, 2)\n",
    "the environment": "import os\nn = int(os.environ.get('N', 6))\n" + CONFIG,
    "a division by zero": "n = 6 // 0\n" + CONFIG,
    "a large power": "n = 2 ** 10 ** 10\n" + CONFIG,
    "a list that grows": "n = [6]\nn.append(x)\nGRPOConfig(num_generations=n[0])",
    "a hidden function": f"@x\ndef f(n):\n    {CONFIG}f(6)\n",
    "recursion": "def f(n):\n    return f(n)\nn = f(6)\n" + CONFIG,
}

PARSER = "import argparse\np = argparse.ArgumentParser()\n"
ARGS = "a = p.parse_args()\nGRPOConfig(num_generations=a.num_generations)"
FIELDS = "class A:\n    num_generations: int = 6\n"

DEFAULTS = {
    "argparse": (
        f"{PARSER}p.add_argument('--num-generations', '-n', type=int, default=6)\n{ARGS}",
        "--num-generations"),
    "argparse, another name": (
        f"{PARSER}p.add_argument('--n', dest='num_generations', default='6', type=int)\n{ARGS}", "--n"),
    "argparse in functions": (
        "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n"
        "    g = p.add_argument_group('x')\n    g.add_argument('--num_generations', default=6)\n"
        "    return p.parse_args()\ndef main(a):\n    GRPOConfig(num_generations=a.num_generations)\n"
        "if __name__ == '__main__':\n    main(parse())", "--num_generations"),
    "argparse, known ones": (
        f"{PARSER}p.add_argument('--n', default=6)\na, _ = p.parse_known_args()\n"
        "GRPOConfig(num_generations=a.n)", "--n"),
    "argparse's set_defaults": (
        f"{PARSER}p.add_argument('--num_generations', default=2)\np.set_defaults(num_generations=6)\n{ARGS}",
        "--num_generations"),
    "all of argparse": (
        f"{PARSER}p.add_argument('--num_generations', default=6)\nGRPOConfig(**vars(p.parse_args()))",
        "--num_generations"),
    "a product of a default": (
        f"{PARSER}p.add_argument('--n', default=3)\na = p.parse_args()\n"
        f"GRPOConfig(num_generations=2 * a.n)", "--n"),
    "HfArgumentParser": (
        f"from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n@dataclass\n{FIELDS}"
        "(a,) = HfArgumentParser((A,)).parse_args_into_dataclasses()\n"
        f"GRPOConfig(num_generations=a.num_generations)",
        "--num_generations"),
    "HfArgumentParser, of one class": (
        f"from transformers import HfArgumentParser\n@dataclass\n{FIELDS}"
        "a = HfArgumentParser(A).parse_args_into_dataclasses()[0]\n"
        f"GRPOConfig(num_generations=a.num_generations)",
        "--num_generations"),
    "tyro": (f"import tyro\n@dataclass\n{FIELDS}a = tyro.cli(A)\n"
        f"GRPOConfig(num_generations=a.num_generations)",
        "--num-generations"),
    "tyro, with a field of fields": (
        f"import tyro\nfrom dataclasses import field\n@dataclass\n{FIELDS}@dataclass\nclass B:\n"
        "    grpo: A = field(default_factory=A)\nb = tyro.cli(B)\n"
        "GRPOConfig(num_generations=b.grpo.num_generations)", "--grpo.num-generations"),
    "tyro, of a function": (f"import tyro\ndef main(n: int = 6):\n    {CONFIG}tyro.cli(main)", "--n"),
    "simple_parsing": (
        f"import simple_parsing\n@dataclass\n{FIELDS}a = simple_parsing.parse(A)\n"
        "GRPOConfig(num_generations=a.num_generations)", "--num_generations"),
    "a field": (
        "import tyro\nfrom dataclasses import dataclass, field\n@dataclass\nclass A:\n"
        "    n: int = field(default=6, metadata={'help': ''})\na = tyro.cli(A)\n"
        "GRPOConfig(num_generations=a.n)", "--n"),
    "click": (
        "import click\n@click.command()\n@click.option('--num-generations', '-n', 'n', default=6)\n"
        f"def main(n):\n    {CONFIG}main()", "--num-generations"),
    "click, its own name": (
        "import click\n@click.command()\n@click.option('--num-generations', default=6)\n"
        "def main(num_generations):\n    GRPOConfig(num_generations=num_generations)\nmain()",
        "--num-generations"),
    "typer": (f"import typer\napp = typer.Typer()\n@app.command()\n"
        f"def main(n: int = 6):\n    {CONFIG}app()", "--n"),
    "typer's option": (
        "import typer\ndef main(n: int = typer.Option(6, help='')):\n"
        "    " + CONFIG + "typer.run(main)", "--n"),
    "fire": (f"import fire\ndef main(n=6):\n    {CONFIG}fire.Fire(main)", "--n"),
    "chz": (
        f"import chz\n@chz.chz\n{FIELDS}def main(a: A):\n    GRPOConfig(num_generations=a.num_generations)\n"
        "chz.nested_entrypoint(main)", "num_generations"),
    "chz, async": (
        f"import chz, asyncio\n@chz.chz\n{FIELDS}async def main(a):\n"
        "    GRPOConfig(num_generations=a.num_generations)\na = chz.entrypoint(A)\nasyncio.run(main(a))",
        "num_generations"),
}  # fmt: skip

NO_DEFAULTS = {
    "required": f"{PARSER}p.add_argument('--num_generations', type=int, required=True)\n{ARGS}",
    "in place": f"{PARSER}p.add_argument('num_generations', type=int)\n{ARGS}",
    "of two parts": (
        f"{PARSER}p.add_argument('--num_generations', default=6)\n"
        f"p.add_argument('--m', dest='num_generations', default=2)\n{ARGS}"
    ),
    "by another's code": f"{PARSER}p.add_argument('--num_generations', default=6)\nadd(p)\n{ARGS}",
    "by a type of one's own": f"{PARSER}p.add_argument('--num_generations', default='6', type=f)\n{ARGS}",
    "of a loop": f"{PARSER}p.add_argument('--num_generations', default=6)\nfor x in y:\n"
    f"    p.add_argument(x)\n{ARGS}",
    "of a given line": f"{PARSER}p.add_argument('--num_generations', default=6)\na = p.parse_args(x)\n"
    "GRPOConfig(num_generations=a.num_generations)",
    "of a field without one": (
        "import tyro\n@dataclass\nclass A:\n    n: int\na = tyro.cli(A)\n"
        "GRPOConfig(num_generations=a.n)"
    ),
    "changed by the object itself": (
        f"import tyro\n@dataclass\n{FIELDS}    def __post_init__(self):\n        self.num_generations = x()\n"
        "a = tyro.cli(A)\nGRPOConfig(num_generations=a.num_generations)"
    ),
}


def of(written, text):
    return resolve(
        [
            written(
                "train.py", text if "import trl" in text else f"from trl import GRPOConfig\n{text}"
            )
        ]
    )


@pytest.mark.parametrize("text", SIX.values(), ids=SIX.keys())
def test_one_value_reaches_the_config(written, text):
    meaning = of(written, text)
    assert (meaning.group_size, meaning.said) == (6, ())


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_several_values_may_reach_the_config(written, text):
    refuses("only the run itself sets .*num_generations", of, written, text)


@pytest.mark.parametrize(("text", "option"), DEFAULTS.values(), ids=DEFAULTS.keys())
def test_a_default_of_the_script_is_said_to_be_one(written, text, option):
    meaning = of(written, text)
    assert meaning.group_size == 6
    assert meaning.said == (f"G is the default of your script's option {option}.",)


@pytest.mark.parametrize("text", NO_DEFAULTS.values(), ids=NO_DEFAULTS.keys())
def test_an_option_without_a_certain_default_is_not_read(written, text):
    refuses("only the run itself sets num_generations", of, written, text)


def test_a_typed_group_size_is_no_default_of_the_script(written):
    path = written("train.py", "from trl import GRPOConfig\n" + DEFAULTS["fire"][0])
    assert resolve([path, "num_generations=4"]).said == ()
    assert resolve([path], group_size=4).said == ()


def test_explain_says_whose_default_a_value_is(written, capsys):
    from ustat_pg.cli import main

    path = written("train.py", "from trl import GRPOConfig\n" + DEFAULTS["argparse"][0])
    assert main(["explain", path]) == 0
    assert "G is the default of your script's option --num-generations." in capsys.readouterr().out
    assert main(["explain", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["said"]


@pytest.mark.parametrize("text", ["", "GRPOTrainer(m, args=a if x else b)\n",
                                  "GRPOTrainer(*m, args=b)\n", "T(a)\nGRPOTrainer(args=b)\n"])  # fmt: skip
def test_a_config_that_a_trainer_may_get_is_kept(written, text):
    both = "a = GRPOConfig(num_generations=4)\nb = GRPOConfig(num_generations=6)\n"
    assert [
        each.group_size
        for each in resolve_all(written("run.py", f"from trl import *\n{both}{text}"))
    ] == [4, 6]


def test_two_configs_are_two_answers_in_order(written):
    text = (
        "from trl import GRPOConfig\nGRPOConfig(num_generations=4)\nGRPOConfig(num_generations=6)\n"
    )
    path = written("train.py", text)
    first, second = resolve_all([path])
    assert (first.group_size, second.group_size) == (4, 6)
    assert second.place == f"{path}, line 3: GRPOConfig"
    assert resolve([f"{path}:3"]).group_size == 6


CELLS = [
    "%%bash\npython train.py --num_generations 2",
    "%%capture\nn = 6",
    "if True:\n    !pip install trl \\\n        vllm\nx = !ls",
    "from trl import GRPOConfig\nGRPOConfig(num_generations=n)",
]


def test_a_notebook_is_its_cells_of_python(written):
    cells = [{"cell_type": "code", "source": text} for text in CELLS]
    assert resolve([written("run.ipynb", json.dumps({"cells": cells}))]).group_size == 6


@pytest.mark.parametrize(
    ("lines", "framework"),
    [
        ("from trl import GRPOConfig\nc = GRPOConfig(", "trl"),
        ("import trl\nc = trl.GRPOConfig(", "trl"),
        (
            "from open_r1.configs import GRPOConfig\nfrom trl import GRPOTrainer\nc = GRPOConfig(",
            "trl",
        ),
        ("from tunix.rl.agentic.learner import GRPOConfig\nc = GRPOConfig(", "tunix"),
        ("from tunix.rl.agentic import learner as own\nc = own.GRPOConfig(", "tunix"),
        ("from mylib import GRPOConfig\nc = GRPOConfig(", None),
    ],
)
def test_a_class_is_that_of_the_package_which_it_comes_from(written, lines, framework):
    path = written("train.py", f"{lines}num_generations=4, beta=0.02)\n")
    if framework is None:
        refuses("framework of these options is not clear", resolve, [path])
    else:
        assert resolve([path]).framework.name == framework
