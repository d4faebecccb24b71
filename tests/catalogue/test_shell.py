"""Commands of scripts: words as bash splits them, and nothing guessed where only the run knows."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.refusals import refuses
from ustat_pg.catalogue import resolve, resolve_all
from ustat_pg.catalogue.shell import commands_of, read
from ustat_pg.cli import main

SNIPPETS = r"""
A=1 B="x $A"; p $A "$B" $B ${A}2
%%
X='a b  c'; p $X "$X" x$X"y z"w
%%
X=(a "b c" ''); p "${X[@]}" ${X[@]} "${#X[@]}" "${X[1]}" ${X[-1]}x "${X[*]}"
%%
X=(); p "${X[@]}" a ${X[@]+"${X[@]}"}
%%
X=(1 2); X+=(3 "4 5"); p "pre${X[@]}post"
%%
set -- a "b c" d; p "$@" $# "$*" $2 ${2}
%%
f() { local a=$1; shift; p $a "$@" $#; }; f 1 2 "3 4"
%%
p {a,b}{1,2} x{1..3}y {a} {} a{b,c
%%
p '{a,b}' "{a,b}" +x='{a:1,b:2}' +x={a:1,b:2}
%%
V=dir/file.tar.gz; p ${V%.*} ${V%%.*} ${V#*/} ${V##*.} ${V/a/b} ${V//r/R} ${V/%gz/xz} ${V/#dir/D} ${#V}
%%
V=dir/file.tar.gz; p ${V:4:4} ${V: -2} ${V^^} ${V^}
%%
unset Q; p ${Q:-d e} "${Q:-d e}" ${Q:-"d e"} ${Q-x} ${Q:+y} "${Q:+y}" z ${Q:=new} $Q
%%
N=3; p $((N*2+1)) $(( (N+1) % 2 )) $((N**2)) $((-N/2)) $((N>2)) $((N==3 && N<2))
%%
N=3; ((N++)); ((N+=2)); let N=N*2; p $N
%%
p a\ b "a\"b" 'a\b' "a\\b" "a\b" $'a\tb' "$(echo hi   there)" $(echo hi   there)
%%
p $(basename /a/b.sh .sh) $(dirname /a/b) `echo x` "`echo 'q w'`"
%%
i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; p $i
%%
for ((i=0;i<4;i++)); do J+=$i; done; p $J
%%
if [ "a" = "b" ]; then X=1; elif [[ 3 -gt 2 && a == a* ]]; then X=2; else X=3; fi; p $X
%%
case abc in x|y) Y=1;; a*) Y=2;; *) Y=3;; esac; p $Y
%%
case "a" in "a"|b) p one;; esac
%%
declare -A M=([k]=v [l]="w z"); M[m]=3; p "${M[k]}" "${M[l]}" ${M[m]}
%%
M=k; k=5; p ${!M}
%%
read -r a b <<< "1 2 3"; p "$a" "$b"
%%
IFS=, read -ra R <<< "x,y z,w"; p "${R[@]}"
%%
p "$(cat <<EOF
line $((1+1))
"quoted" \$x
EOF
)"
%%
x=5; p "${x}"'$x'"\$x" $x$x
%%
eval "p a 'b c'"
%%
E="p q 'r s'"; eval $E; eval "$E"
%%
bash -c 'echo $0 $1' a b | { read z; p $z; }
%%
(X=9; p $X); X=8; p $X
%%
X=a; { X=b; }; p $X
%%
[ -z "" ] && p empty; [ -n "" ] || p full; ! false && p neg
%%
true && p t; false || p f
%%
X="a=1 b=2"; p pre $X "$X" post=$X
%%
p --x="$(printf '%s,' a b c)" $(seq 2 2 6)
%%
X=; p "$X" $X a
%%
p a*zz 'a*' "?"
%%
A=(a b c d); p "${A[@]:1:2}" "${A[@]/#/x}" "${A[@]%d}" "${!A[@]}"
%%
p $(echo a,b,c | tr ',' ' ') $(echo AbC | tr '[:upper:]' '[:lower:]')
%%
p ${UNSETX:-${N:-7}} ${UNSETX:-$(echo k)}
%%
f() { if [ $1 = 1 ]; then return; fi; p got $1; }; f 1; f 2
%%
for a in x y z; do [ $a = y ] && continue; p $a; done
%%
for a in x y z; do if [ $a = y ]; then break; fi; p $a; done
%%
p a 2>/dev/null b 2>&1 c
%%
V=1; p ${V:+a b} "${V:+a b}"
%%
case b in a) N=1;; b) N=2;& c) M=3;; *) N=4;; esac; p $N $M
%%
case b in b) N=2;;& a) N=1;; *) M=5;; esac; p $N $M
%%
declare -i N=4; N+=4; p $N $((10#08)); p $"x y"
%%
N=3; p $((N>2?16:4)) $((N>3 ? N+1 : 4)) $((1<<N))
%%
A=(a b c); unset 'A[1]'; p "${A[@]}" ${A[2]}; A+=(d); p "${A[@]}"
%%
f() { local -n R=$1; p "${R[@]}"; }; A=(x "y z"); f A
%%
mapfile -t L < <(printf 'a\nb c\n'); p "${L[1]}" "${L[@]}"
""".strip().split("\n%%\n")
"""Harmless scripts; each calls ``p`` with words."""

SHOW = """p() { printf "<"; printf "%s\\0" "$@"; printf "\\1"; }
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is the oracle")
def test_words_are_those_of_bash():
    script = "".join(f"(\n{snippet}\n)\nprintf '\\2'\n" for snippet in SNIPPETS)
    run = subprocess.run(["bash", "-c", SHOW + script], capture_output=True, text=True, check=True)
    real = run.stdout.split("\2")
    for snippet, said in zip(SNIPPETS, real, strict=False):
        wanted = [call[1:].split("\0")[:-1] for call in said.split("\1") if call]
        ours = [words for each in read(snippet, "it") for words in each.lists]
        assert [words[1:] for words in ours if words[0] == "p"] == wanted, snippet


CERTAIN = {
    "of its own environment": ("A=1\nA=2 p $A\np $A", [["p", "1"], ["p", "1"]]),
    "exported": ("A=1; export B=2\nbash -c 'p $B x$A'", [["p", "2", "x$A"]]),
    "of env": ("env A=4 bash -c 'p $A'", [["p", "4"]]),
    "in a heredoc": ("A=1\ncat <<EOF | bash\np $A\nEOF", [["p", "1"]]),
    "in a heredoc as it is": ("A=1\nbash <<'EOF'\nA=2\np $A\nEOF", [["p", "2"]]),
    "in a script that it writes": (
        "cat > x.sh <<'EOF'\np $1\nEOF\nchmod +x x.sh\nsrun bash x.sh 5",
        [["chmod", "+x", "x.sh"], ["p", "5"]]),
    "behind a launcher": (
        "N=3\ndocker run -v a:b image bash -lc \"cd /x && p $N\"", [["p", "3"]]),
    "of functions": ("f() { local a=$1; shift; p $a \"$@\"; }\nf 1 '2 3'", [["p", "1", "2 3"]]),
    "of branches that are certain": ("if [[ a == a* ]]; then p 1; else p 2; fi", [["p", "1"]]),
    "unless it is given": ("if [ -z \"$X\" ]; then X=8; fi\np $X", [["p", "8"]]),
    "when it is given": ("if [ $# -lt 1 ]; then echo usage; exit 1; fi\np 1", [["p", "1"]]),
    "when what it asks for is there": ("Y=${Y:-}\n[ -n \"$Y\" ] || exit 1\np 1", [["p", "1"]]),
    "behind exec": ("exec p 1\np 2", [["p", "1"]]),
    "behind an end": ("p 1\nexit 0\np 2", [["p", "1"]]),
    "in an option with several words": ("E='a=1 b=2'\np $E \"$E\"", [["p", "a=1", "b=2", "a=1 b=2"]]),
    "in three that are joined": (
        "p 1 2>&1 | q | r x\np 2\np 3 2>&1 | q",
        [["p", "1"], ["q"], ["r", "x"], ["p", "2"], ["p", "3"], ["q"]]),
    "that a comment ends": ("p a \\\n  # b \\\n  c=3", [["p", "a"]]),
    "with a comment inside": ("p a \\\n  `# b` \\\n  c", [["p", "a", "c"]]),
    "of a text that is read": ("read -r -d '' A <<EOF\np 1\nEOF\n$A", [["p", "1"]]),
    "both ways alike": ("if x; then N=4; M=1; else N=4; M=2; fi\np $N", [["x"], ["p", "4"]]),
}  # fmt: skip
"""Scripts and their commands."""


@pytest.mark.parametrize(("text", "words"), CERTAIN.values(), ids=CERTAIN.keys())
def test_commands_of_a_script(text, words, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert commands_of(path) == words


UNKNOWN = {
    "an argument": ("p $1", "$1"),
    "what a program prints": ("N=$(nproc)\np $N", "$(nproc)"),
    "a branch": ("if x; then N=4; else N=8; fi\np $N", "$N"),
    "a branch of a case": ("case $1 in a) N=4;; *) N=8;; esac\np $N", "$N"),
    "what && decides": ("N=8\nx && N=4\np $N", "$N"),
    "a read": ("read N\np $N", "$N"),
    "a sum of it": ("N=$((2 * $1))\np $N", "$((2 * $1))"),
    "a loop that a program ends": ("N=1\nwhile x; do N=2; done\np $N", "$N"),
}


@pytest.mark.parametrize(("text", "word"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_only_the_run_knows_is_said(text, word):
    (command,) = [each for each in read(text, "it") if each.words[0] == "p"]
    assert command.words == ["p", word]


@pytest.fixture
def written(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.sh").write_text(text)
        return str(tmp_path / f"{next(iter(texts))}.sh")

    return write


VERL = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n="


def test_options_belong_to_the_command_they_stand_in(written):
    path = written(
        run=f"python -m tools.prepare --mode text\n{VERL}8\npython infer.py rollout.n=1\n"
    )
    meaning = resolve([path])
    assert (meaning.framework.name, meaning.group_size, meaning.passed_over) == ("verl", 8, ())
    assert meaning.also == (
        "The script also runs `tools.prepare`, `infer.py`, whose options are not of a training.",
    )
    named = resolve(
        ["trl", written(run="python a.py --num_generations 4\npython infer.py --beta 1\n")]
    )
    assert (named.group_size, named.values["beta"]) == (4, "0.0")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (f"{VERL}1 trainer.val_only=True", "trainer.val_only is"),
        ("swift infer --num_generations 1", "`swift infer`: it trains without"),
        ("ray start --head --num-cpus 1", "`ray start`, whose options are not of a training"),
    ],
)
def test_what_trains_nothing_is_told_apart(written, other, said):
    for text in (f"{VERL}8\n{other}\n", f"{other}\n{VERL}8\n"):
        (meaning,) = resolve_all([written(run=text)])
        assert meaning.group_size == 8
        assert any(said in sentence for sentence in meaning.also)


def test_what_trains_nothing_alone_is_refused(written):
    refuses("val_only is", resolve, [written(run=f"{VERL}4 trainer.val_only=True")])
    assert resolve([written(run=f"{VERL}4 trainer.val_only=False")]).group_size == 4


def test_two_trainings_are_two_answers_in_order(written, capsys):
    path = written(run="trl grpo --num_generations 4\nbash other.sh 8\n",
                   other="trl grpo --num_generations $1\n")  # fmt: skip
    assert [each.group_size for each in resolve_all([path])] == [4, 8]
    refuses(
        "2 trainings .*line 1: trl grpo and .*line 2: trl grpo .*other.sh, line 1", resolve, [path]
    )
    assert resolve([f"{path}:2"]).group_size == 8
    refuses("nothing to read begins in line 7", resolve, [f"{path}:7"])
    assert main(["explain", path]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if ", line " in line]
    assert [head.removeprefix(path) for head in heads] == [
        ", line 1: trl grpo", ", line 2: trl grpo (other.sh, line 1)",
    ]  # fmt: skip
    assert main(["explain", path, "--json"]) == 0
    assert [each["group_size"] for each in json.loads(capsys.readouterr().out)] == [4, 8]


def test_certain_rounds_of_a_loop_are_trainings(written):
    path = written(run="for n in 4 8; do trl grpo --num_generations $n; done")
    assert [each.group_size for each in resolve_all([path])] == [4, 8]
    refuses("line 1: trl grpo is run 2 times with other options", resolve, [path])


@pytest.mark.parametrize(
    ("text", "size"),
    {
        "trl grpo --num_generations 4 # \\\n  --beta 0.5": 4,
        "echo --num_generations 4 | xargs trl grpo": 4,
        "trl grpo --num_generations 4 > log --beta 0.1 2>&1": 4,
        "cat > env.sh <<'EOF'\nN=4\nEOF\nsource ./env.sh\ntrl grpo --num_generations $N": 4,
    }.items(),
)
def test_words_of_a_command_alone_are_its_options(written, text, size):
    (meaning,) = resolve_all([written(run=text)])
    assert meaning.group_size == size
    assert meaning.values["beta"] == ("0.1" if "0.1" in text else "0.0")
    assert len(meaning.also) == (" # " in text)


@pytest.mark.parametrize("words", ["$(cat x.txt)", '"${L[@]}"', "$O"])
def test_words_that_may_be_options_are_said(written, words):
    reads = 'mapfile -t L < x.txt\nwhile read a; do O+=" $a"; done < x.txt\n'
    meaning = resolve([written(run=f"{reads}trl grpo --num_generations 4 {words}")])
    assert meaning.said == (
        f"Only the run itself knows which options {words.strip(chr(34))} may add.",
    )
    named = resolve([written(run=f"{reads}trl grpo --num_generations 4 --name {words}")])
    assert not named.said


@pytest.mark.parametrize("words", ["adv_estimator = grpo", "adv_estimator =grpo",
                                   "adv_estimator= grpo"])  # fmt: skip
def test_a_space_beside_the_sign_of_equality_is_refused(written, words):
    text = f"python -m verl.trainer.main_ppo algorithm.{words} actor_rollout_ref.rollout.n=8"
    refuses("line 1: .* cannot be parsed", resolve, [written(run=text)])


def test_a_value_that_hydra_quotes_is_plain(written):
    text = VERL + "4 algorithm.adv_estimator='\"rloo\"'"
    assert resolve([written(run=text)]).values["algorithm.adv_estimator"] == "rloo"


def test_options_behind_two_dashes_are_said(written):
    meaning = resolve([written(run=f"{VERL}4 -- --rollout.n 8")])
    assert meaning.group_size == 4
    assert any("-- --rollout.n 8 may add" in sentence for sentence in meaning.said)


@pytest.mark.parametrize("text", ["echo 4 | xargs -I{} trl grpo --num_generations {}",
                                  "trl grpo --num_generations $((RANDOM>2?4:8))"])  # fmt: skip
def test_what_is_not_computed_is_no_default(written, text):
    refuses("num_generations is .*only the run itself", resolve, [written(run=text)])


def test_trainings_that_agree_are_one(written):
    text = "for s in 1 2; do trl grpo --num_generations 4 --seed $s; done\ntrl grpo --num_generations 4\n"
    path = written(run=text)
    assert resolve([path]).group_size == 4
    assert len(resolve_all([path])) == 2


DECIDED = {
    "a loop that may not run": (
        "for n in 4 8; do x && trl grpo --num_generations $n; done", r"\$\(4 or 8\)"),
    "words of a branch": (
        "A=(--beta 0)\nif x; then A+=(--num_generations 4); fi\ntrl grpo \"${A[@]}\"", "4 or nothing"),
    "options in one variable": (
        "E='--num_generations 4'\nx && E='--num_generations 8'\ntrl grpo $E", r"\$E"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), DECIDED.values(), ids=DECIDED.keys())
def test_an_option_that_only_the_run_knows_is_refused(written, text, said):
    refuses(f"num_generations is .*({said}).*only the run itself", resolve, [written(run=text)])
    assert resolve([written(run=text), "num_generations=6"]).group_size == 6


def test_an_option_that_every_way_has_is_certain(written):
    text = (
        "if x; then E='--num_generations 4'; else E='--beta 0 --num_generations 4'; fi\ntrl grpo $E"
    )
    assert resolve([written(run=text), "beta=0"]).group_size == 4


def test_a_file_of_another_kind_is_said_to_be_read_as_a_script(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("one `word")
    said = "nothing closes .*; a file that ends in .md is read as a shell script"
    refuses(said, resolve, [str(path)])


BAD = {
    "a quote": ("trl grpo 'x", "line 1: nothing closes"),
    "no end": ("if true; then\ntrl grpo", "line . cannot be parsed"),
    "no words": ("", "runs no program"),
    "a script that sources itself": (". run.sh", "sources itself"),
    "a loop without an end": ("while true; do i=$((i+1)); n=$n.; done", "more than 5,000 steps"),
    "a loop of loops": ("for i in {1..999}; do for j in {1..999}; do A=$j; done; done", "steps"),
    "a value that doubles": ("X=a\nwhile :; do X=$X$X; done", "more than 262144 characters"),
    "a function of itself": ("f() { f; f; }; f", "nested more than"),
    "nesting": ("( " * 5000 + "a" + ")" * 5000, "cannot be parsed|nested"),
    "expansions": ("X=" + "${X:-" * 3000 + "}" * 3000, "nested too deeply"),
    "branches": ("if x; then A=${A}1; fi\n" * 2000, "more than"),
    "commands": ("".join(f"a {n}\n" for n in range(3000)), "more than 300 commands"),
    "size": ("a\n" * 6 * 10**6, "bytes: at most"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_a_hostile_script_is_one_line_in_bounded_work(written, capsys, text, said):
    path = written(run=text)
    refuses(said, resolve, [path])
    assert main(["explain", path]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_patterns_end_at_once():
    text = (
        "X="
        + "a" * 900
        + "\n[[ $X =~ ^(a+)+$ ]] && N=1\ncase $X in *a*a*a*a*a*b) N=3;; esac\np ${X/*a*a*b/c}"
    )
    assert len(read(text, "it")) == 1


def test_scripts_that_run_themselves_again_are_followed_once(written):
    path = written(run='if [ -z "$JOB" ]; then sbatch run.sh; fi\ntrl grpo --num_generations 4\n')
    assert resolve([path]).group_size == 4
    assert Path(path).name == "run.sh"
