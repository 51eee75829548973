"""The page, the Markdown and the CSV say the same, and the page needs nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.reporting import comparison, curves, documents, runs
from impala_tf.reporting.comparison import Level
from impala_tf.reporting.documents import Exhibit, Exhibits
from tests.helpers.logdirs import Row, level_rows, rows, write_levels, write_run

LEVEL = "evil:<script>alert('1|2')</script>$-v0"


def level_of(folder: Path) -> Level:
    (level,) = comparison.group(runs.find(str(folder)))
    return level


def nothing(level: Level) -> Exhibits:
    return {setting: Exhibit() for setting in level.settings}


def document(name: str, level: Level, exhibits: Exhibits | None = None, command: str = "") -> str:
    return documents.render(name, [level], exhibits or nothing(level), command)


def cells(level: Level) -> list[dict[str, str]]:
    titles, found = documents.table(level, nothing(level))
    return [dict(zip(titles, row, strict=True)) for row in found]


def csv_rows(level: Level, exhibits: Exhibits | None = None) -> list[dict[str, str]]:
    text = documents.as_csv([level], exhibits or nothing(level))
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def level(tmp_path: Path) -> Level:
    """A level with a name that is not harmless, and two agents; only one was filmed."""
    write_run(tmp_path / "a1", agent_name="ResNetAgent", level_name=LEVEL, seed=1)
    better = rows((0, 0, -20), (4000, 5, 30))
    write_run(tmp_path / "a2", better, agent_name="ResNetAgent", level_name=LEVEL, seed=2)
    write_run(tmp_path / "b", rows((0, 0, -20), (1000, 1, -19)), agent_name="ImpoolaAgent",
              level_name=LEVEL)  # fmt: skip
    return level_of(tmp_path)


@pytest.fixture
def exhibits(level: Level) -> Exhibits:
    filmed, broken = level.settings
    return {
        filmed: Exhibit(1_687_206, b"an mp4", "seed 1"),
        broken: Exhibit(caption="no video"),
    }


class Elements(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_refers_to_nothing_outside(level: Level, exhibits: Exhibits) -> None:
    """It is mailed around and opened years later."""
    text = document("report.html", level, exhibits, "python run_experiment.py")
    elements = Elements(text)
    for _, attributes in elements.found:
        for name in ("src", "href", "xlink:href", "poster", "data", "srcset", "action"):
            value = attributes.get(name) or "data:"
            assert value.startswith(("data:", "#")), value
    assert not re.search(r"@import|url\((?!#)", text)
    (policy,) = (each["content"] for each in elements.all("meta") if "http-equiv" in each)
    assert policy is not None and policy.startswith("default-src 'none'; ")


EVIL = "<script>|`x`|\x1b]0;x\x07\n# <b>[a](http://b)\u202e"


def test_no_text_of_a_stranger_s_run_is_markup_or_moves_the_cursor(tmp_path: Path) -> None:
    """His files may say anything, in every place that is shown."""
    for seed in (1, 2):
        folder = write_run(tmp_path / f"a\x1b[2J|<b>{seed}", level_name=EVIL, seed=seed)
        content = json.loads((folder / "config.json").read_text())
        texts = dict.fromkeys(("protocol", "git_commit", "machine"), EVIL)
        flags = content["flags"] | {"agent_name": EVIL, "algorithm": EVIL, "level_kwargs": EVIL}
        content |= texts | {"flags": flags, "history": [{"machine": EVIL}], "versions": EVIL}
        (folder / "config.json").write_text(json.dumps(content))
        status = {"state": EVIL, "updated_unix_s": EVIL, "end_reason": EVIL, "notes": [EVIL]}
        (folder / "status.json").write_text(json.dumps(status))
        row = {"environment_frames": 1, "wall_time_s": 1, "level_name": EVIL, "episodes": 1}
        row |= {"policy": EVIL, "played": EVIL, "return_mean": 1, "normalized_return_mean": ""}
        with (folder / "evaluation.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerow(row)
    level = level_of(tmp_path)
    exhibits = {setting: Exhibit(caption=EVIL) for setting in level.settings}
    page, text = (document(f"report.{kind}", level, exhibits, EVIL) for kind in ("html", "md"))
    table = documents.as_csv([level], exhibits)
    for shown in (page, text, table, curves.picture(level) or "", *cells(level)[0].values()):
        assert not set(shown) & set("\x1b\x07\x9b\u202e\r")
    assert {tag for tag, _ in Elements(page).found}.isdisjoint({"script", "b", "a"})
    policy = Elements(page).all("meta")[2]["content"] or ""
    assert "form-action 'none'" in policy and "base-uri 'none'" in policy
    plain = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not [line for line in plain if re.search(r"(?<!\\)[<`\[]", line.removeprefix("!["))]
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in plain if line.startswith("|")]
    assert len(set(columns)) == 1 and len([line for line in plain if line.startswith("#")]) == 2


@pytest.mark.parametrize("wrong", [{"seed": "1"}, {"level_name": 3}, {"learner_hosts": None}])
def test_a_run_with_flags_of_other_types_is_named(tmp_path: Path, wrong: dict) -> None:
    content = json.loads((write_run(tmp_path) / "config.json").read_text())
    content["flags"] |= wrong
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"config.json: {next(iter(wrong))}: "):
        runs.find(str(tmp_path))


@pytest.mark.parametrize("name", ["metrics.csv", "evaluation.csv", "config.json"])
def test_a_file_that_never_ends_is_named(tmp_path: Path, name: str) -> None:
    (write_run(tmp_path) / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=name):
        runs.read(tmp_path)


def test_a_picture_names_its_lines_and_is_valid(tmp_path: Path) -> None:
    """A dollar sign would begin a formula."""
    names = ("<$a$", "<$b$")
    for name in names:
        write_run(tmp_path / name[2], level_kwargs=f"name={name}")
    picture = curves.picture(level_of(tmp_path)) or ""
    texts = [each.text or "" for each in ElementTree.fromstring(picture).iter()]
    for name in names:
        assert any(text.endswith(f"level_kwargs=name={name}") for text in texts)


def test_markdown_and_page_have_the_same_cells(level: Level, exhibits: Exhibits) -> None:
    titles, found = documents.table(level, exhibits)
    assert "last evaluation" not in titles  # nobody has the figure
    lines = document("report.md", level, exhibits).splitlines()
    assert f"| {' | '.join(titles)} |" in lines
    text = Elements(document("report.html", level, exhibits)).text
    for row in found:
        assert f"| {' | '.join(row)} |" in lines
        assert all(cell.replace(" (", "\n(") in text for cell in row)
    resnet, impoola = (dict(zip(titles, row, strict=True)) for row in found)
    assert (resnet["seeds"], resnet["parameters"]) == ("2", "1.69 M")
    assert resnet["final return"] == "25.0 (20.0 to 30.0)"
    assert resnet["frames to 16.0"] == "4 k (4 k to 4 k)"
    assert (impoola["seeds"], impoola["frames to 16.0"]) == ("1 (1 unfinished)", "–")


def test_the_csv_has_a_row_per_run_with_plain_numbers(level: Level, exhibits: Exhibits) -> None:
    first, second, third = csv_rows(level, exhibits)
    assert (first["agent_name"], first["seed"], first["level_name"]) == ("ResNetAgent", "1", LEVEL)
    assert (first["parameters"], first["final_return"]) == ("1687206", "20.0")
    assert (second["frames_to_target"], third["frames_to_target"]) == ("4000", "")


def test_games_while_training_have_a_picture_and_a_column(tmp_path: Path) -> None:
    """Seen and unseen levels side by side; a curve of training alone hides the gap."""
    header = "wall_time_s,environment_frames,level_name,played,episodes,policy,return_mean"
    for seed in (1, 2, 3):
        path = write_run(tmp_path / str(seed), seed=seed)
        lines = [f"{60 * n},{1000 * n},a,unseen levels,9,greedy,{n + seed}" for n in (1, 2, 4)]
        (path / "evaluation.csv").write_text("\n".join([header, *lines]) + "\n")
    level = level_of(tmp_path)
    page = Elements(document("report.html", level))
    labels = [each.get("aria-label") or "" for each in page.all("div")]
    assert any("mean return on unseen levels (9 games, greedy" in label for label in labels)
    assert cells(level)[0]["last evaluation"] == "6.00 (5.00 to 7.00)"
    assert "unseen levels" in document("report.md", level)
    assert [row["last_evaluation"] for row in csv_rows(level)] == ["5.0", "6.0", "7.0"]


@pytest.mark.parametrize("metrics", [[], rows((4000, 0.1, 400))])
def test_runs_without_a_curve_still_make_a_report(tmp_path: Path, metrics: list[Row]) -> None:
    level = level_of(write_run(tmp_path, metrics))
    assert curves.picture(level) is None
    assert "There are no curves" in Elements(document("report.html", level)).text
    expected = "a mean return of 400.0" if metrics else "No game has finished yet"
    assert expected in document("report.md", level)


RESNET, IMPOOLA = "ResNetAgent", "ImpoolaAgent"


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ({RESNET: [20, 19], IMPOOLA: [1, 2]}, "No winner is named: that needs 3 seeds"),
        ({RESNET: [20, 1, 9], IMPOOLA: [8, 15, 9]}, "No winner is named: chance can explain"),
        ({RESNET: [20, 19, 21], IMPOOLA: [1, 2, 3]},
         "ResNetAgent ended with the highest mean return: 20.0 (19.0 to 21.0)."),
    ],
)  # fmt: skip
def test_no_winner_is_named_that_chance_could_have_made(
    returns: dict[str, list[float]], sentence: str, tmp_path: Path
) -> None:
    """People pick their network by this sentence."""
    for agent, finals in returns.items():
        for seed, final in enumerate(finals, start=1):
            metrics = rows((0, 0, 0), (4000, 4, final))
            write_run(tmp_path / agent / str(seed), metrics, agent_name=agent, seed=seed)
    level = level_of(tmp_path)
    text, page = document("report.md", level), document("report.html", level)
    assert sentence in text and sentence in page
    assert ('class="best"' in page) == ("No winner" not in sentence)


def test_nothing_is_compared_before_all_runs_have_finished(tmp_path: Path) -> None:
    """Three runs that have just begun lose against three that are complete."""
    for seed in (1, 2, 3):
        write_run(tmp_path / "a" / str(seed), agent_name=RESNET, seed=seed)
        begun = rows((0, 0, -21), (400, 1, -20 - seed / 10))
        write_run(tmp_path / "b" / str(seed), begun, agent_name=IMPOOLA, seed=seed)
    level = level_of(tmp_path)
    assert "No winner is named yet: not all runs have finished." in document("report.md", level)
    assert documents.comparisons(level) == []
    assert 'class="best"' not in document("report.html", level)


def test_repeats_of_a_seed_are_named_and_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "pong", seed=1)
    write_run(tmp_path / "pong.1", rows((0, 0, -21), (400, 1, -21)), seed=1)
    text = document("report.md", level_of(tmp_path))
    assert "ended with a mean return of 20.0." in text
    assert f"repeat a seed: {tmp_path / 'pong.1'}." in text


def test_a_report_of_several_levels_says_what_its_returns_are(tmp_path: Path) -> None:
    path = write_run(tmp_path, rows((0, 0, 1), (4000, 4, 18)), level_name="Pong-v5,Breakout-v5")
    write_levels(path, [*level_rows(0, 0, 1, 3), *level_rows(4000, 4, 100, 10)])
    level = level_of(tmp_path)
    expected = "mean over the levels of their mean returns"
    assert f">{expected}</text>" in (curves.picture(level) or "")
    assert expected in document("report.md", level)
    assert [(row["returns"], row["final_return"]) for row in csv_rows(level)] == [
        ("mean_over_levels", "55.0")
    ]


def test_many_seeds_have_an_interval_in_place_of_their_range(tmp_path: Path) -> None:
    """An interval of three seeds would be their range, with a name that promises more."""
    for seed in range(6):
        write_run(tmp_path / str(seed), rows((0, 0, 0), (4000, 5, 10 + 10 * seed)), seed=seed)
    found = re.search(r"\((\S+) to (\S+)\)", cells(level_of(tmp_path))[0]["final return"])
    assert found is not None
    assert 10 < float(found[1]) < float(found[2]) < 60
