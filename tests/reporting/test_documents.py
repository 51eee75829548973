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

from impala_tf.reporting import curves, documents, facts, runs, settings, table
from impala_tf.reporting.summary import Exhibit, LevelSummary, summarize_level
from tests.helpers.logdirs import rows, write_run

LEVEL = "evil:<script>alert('1|2')</script>-v0"


@pytest.fixture
def summaries(tmp_path: Path) -> list[LevelSummary]:
    """A level with a name that is not harmless, and two agents; only one was filmed."""
    write_run(tmp_path / "a1", agent_name="ResNetAgent", level_name=LEVEL, seed=1)
    better = rows((0, 0, -20), (4000, 5, 30))
    write_run(tmp_path / "a2", better, agent_name="ResNetAgent", level_name=LEVEL, seed=2)
    write_run(tmp_path / "b", rows((0, 0, -20), (1000, 1, -19)), agent_name="ImpoolaAgent",
              level_name=LEVEL)  # fmt: skip
    (level,) = settings.group(runs.find(str(tmp_path)))
    exhibits = {
        level.settings[0]: Exhibit(1_687_206, None, b"an mp4", "seed 1"),
        level.settings[1]: Exhibit(caption="no video: --logdir=b: holds no checkpoint"),
    }
    return [summarize_level(level, exhibits, None)]


class Elements(HTMLParser):
    """Collects the elements and the text of a page; AssertionError if one is not closed."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_refers_to_nothing_outside(summaries: list[LevelSummary]) -> None:
    """It is mailed around and opened years later."""
    text = documents.html(summaries, "python run_experiment.py", "today")
    elements = Elements(text)
    for _, attributes in elements.found:
        for name in ("src", "href", "poster", "data", "srcset", "action"):
            value = attributes.get(name) or "data:"
            assert value.startswith(("data:", "#")), value
    assert not elements.all("script") and not re.search(r"@import|url\(", text)
    (policy,) = (each["content"] for each in elements.all("meta") if "http-equiv" in each)
    assert policy is not None and policy.startswith("default-src 'none'; ")


def test_names_of_levels_are_text_and_not_markup(summaries: list[LevelSummary]) -> None:
    elements = Elements(documents.html(summaries, "<b>", "<i>"))
    assert f"2 networks on {LEVEL}" in elements.text
    ElementTree.fromstring(curves.picture(summaries[0]) or "")  # XML has to be right


def test_the_page_has_both_curves_the_table_and_the_videos(summaries: list[LevelSummary]) -> None:
    elements = Elements(documents.html(summaries, "", ""))
    charts = [each for each in elements.all("svg") if each["class"] == "chart"]
    assert [f"mean return over {axis}" in (each["aria-label"] or "") for each, axis in zip(
        charts, ("environment frames", "minutes of training"), strict=True
    )] == [True, True]  # fmt: skip
    assert len(elements.all("tr")) == 3
    (film,) = elements.all("video")
    assert film["src"] == "data:video/mp4;base64,YW4gbXA0"
    assert "playsinline" in film and "controls" in film
    assert "no video: --logdir=b: holds no checkpoint" in elements.text


def test_no_two_settings_have_the_same_colour_and_dashes(tmp_path: Path) -> None:
    """A reader could not tell the seventh line of a sweep from the first."""
    for number in range(14):
        write_run(tmp_path / f"{number:02}", batch_size=2 + number)
    picture = curves.picture(summarized(tmp_path)) or ""
    rules = dict(re.findall(r"\.line\.([cd]\d+) \{ ([^}]*) \}", picture))
    keys = re.findall(r'class="line ([^"]*)" d="M1 5H27"', picture)
    looks = {tuple(rules.get(name) for name in key.split()) for key in keys}
    assert len(looks) == len(keys) == 14


@pytest.mark.parametrize(("last", "pale"), [(4010, 0), (4100, 1)])
def test_seeds_that_end_a_batch_apart_make_a_whole_line(
    last: int, pale: int, tmp_path: Path
) -> None:
    """Else nearly every picture would have a pale tip."""
    for seed, frames in ((1, 4000), (2, last)):
        write_run(tmp_path / str(seed), rows((0, 0, 0), (frames, 4, 9)), seed=seed)
    over_frames, _ = curves.charts(summarized(tmp_path))
    assert over_frames.count(" pale") == pale


def test_markdown_and_page_have_the_same_cells(summaries: list[LevelSummary]) -> None:
    titles, cells = table.table(summaries[0])
    assert "multiply-adds per step" not in titles  # nobody has the figure
    lines = documents.markdown(summaries, {LEVEL: "a.svg"}, "a command", "today").splitlines()
    assert f"| {' | '.join(titles)} |" in lines
    text = Elements(documents.html(summaries, "", "")).text
    for row in cells:
        assert f"| {' | '.join(row)} |" in lines
        assert all(cell in text for cell in row)
    resnet, impoola = (dict(zip(titles, row, strict=True)) for row in cells)
    assert (resnet["seeds"], resnet["parameters"]) == ("2", "1.69 M")
    assert resnet["final return"] == "25.0 (20.0 to 30.0)"
    assert resnet["frames to 16.0"] == "4.00 k (4.00 to 4.00 k)"
    assert impoola["seeds"] == "1 (1 unfinished: 25 %)"
    assert impoola["frames to 16.0"] == "not reached"


def test_the_csv_has_a_row_per_run_with_plain_numbers(summaries: list[LevelSummary]) -> None:
    first, second, third = csv.DictReader(io.StringIO(table.as_csv(summaries)))
    assert (first["agent_name"], first["seed"], first["level_name"]) == ("ResNetAgent", "1", LEVEL)
    assert (first["parameters"], first["final_return"]) == ("1687206", "20.0")
    assert (second["frames_to_target"], second["minutes_to_target"]) == ("4000", "5.0")
    assert (third["agent_name"], third["frames_to_target"], third["multiply_adds"]) == (
        "ImpoolaAgent", "", "",
    )  # fmt: skip


def test_games_while_training_have_a_picture_columns_and_statistics(tmp_path: Path) -> None:
    """Seen and unseen levels side by side; a curve of training alone hides the gap."""
    for agent, bonus in ("ResNetAgent", 0), ("ImpoolaAgent", 10):
        for seed in (1, 2, 3):
            path = write_run(tmp_path / f"{agent}-{seed}", agent_name=agent, seed=seed)
            lines = [
                f"{60 * n},{1000 * n},{level},unseen levels,{n + seed + bonus + more}"
                for n in (1, 2, 4)
                for level, more in (("a", 0), ("b", 2))
            ]
            header = "wall_time_s,environment_frames,level_name,played,return_mean"
            (path / "evaluation.csv").write_text("\n".join([header, *lines]) + "\n")
    (level,) = settings.group(runs.find(str(tmp_path)))
    found = summarize_level(level, {each: Exhibit() for each in level.settings}, None)
    charts = [chart for chart in curves.charts(found) if "evaluations on unseen levels" in chart]
    assert len(charts) == 1
    assert charts[0].count("pale") == 2  # the training of both settings
    titles, cells = table.table(found)
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in cells}
    assert rows["ResNetAgent"]["last evaluation"] == "7.00 (6.00 to 8.00)"  # 4 + seed + 1
    assert rows["ImpoolaAgent"]["last evaluation, IQM"].startswith("17.0 (")
    text = documents.markdown([found], {}, "", "")
    assert "in evaluation, ImpoolaAgent over ResNetAgent: probability of improvement 1.00" in text
    assert "evaluated, in whole games on unseen levels." in text
    plain = csv.DictReader(io.StringIO(table.as_csv([found])))
    assert {row["last_evaluation"] for row in plain} == {
        "6.0", "7.0", "8.0", "16.0", "17.0", "18.0",
    }  # fmt: skip


def test_the_legend_explains_only_what_is_drawn(tmp_path: Path) -> None:
    """A single evaluation is a figure of the table, and no line."""
    path = write_run(tmp_path, eval_every=2000)
    lines = ["wall_time_s,environment_frames,level_name,played,return_mean"]
    for frames, charts in ((2000, 2), (4000, 3)):
        lines.append(f"60,{frames},a,other seeds,5")
        (path / "evaluation.csv").write_text("\n".join(lines) + "\n")
        found = summarized(path)
        assert len(curves.charts(found)) == charts
        assert ("the lines are games on" in facts.legend(found)) == (charts == 3)


def test_runs_without_a_game_still_make_a_report(tmp_path: Path) -> None:
    (level,) = settings.group(runs.find(str(write_run(tmp_path, []))))
    found = [summarize_level(level, {level.settings[0]: Exhibit()}, None)]
    assert curves.picture(found[0]) is None
    assert "No game has finished yet." in Elements(documents.html(found, "", "")).text
    assert "No game has finished yet." in documents.markdown(found, {}, "", "")


def test_a_report_says_why_short_runs_have_no_curve(tmp_path: Path) -> None:
    """Their games have finished, as the mean return above says."""
    found = summarized(write_run(tmp_path, rows((4000, 0.1, 400))))
    text = Elements(documents.html([found], "", "")).text
    assert "ended with a mean return of 400.0 (1 seed)." in text
    assert "no run has two rows of metrics.csv in which a game had finished" in text
    assert "a smaller --metrics_interval_s writes more rows." in text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-21.0, 21.0, [-20.0, -10.0, 0.0, 10.0, 20.0]),
        (0.0, 8e6, [0.0, 2e6, 4e6, 6e6, 8e6]),
    ],
)
def test_axes_have_round_ticks(low: float, high: float, ticks: list[float]) -> None:
    assert curves.Axis(low, high, 0, 1).ticks() == pytest.approx(ticks)


RESNET, IMPOOLA, NATURE = "ResNetAgent", "ImpoolaAgent", "NatureAgent"


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ({RESNET: [20, 19], IMPOOLA: [1, 2]},
         "No winner is named: that needs 3 seeds or more of each of ResNetAgent and ImpoolaAgent."),
        ({RESNET: [20, 1, 9], IMPOOLA: [8, 15, 9]},
         "No winner is named: chance can explain the differences between ImpoolaAgent and"
         " ResNetAgent."),
        ({RESNET: [20, 19, 21], IMPOOLA: [1, 2, 3]}, "ResNetAgent ended with the highest mean"
         " return: 20.0 (95 % interval 19.0 to 21.0, 3 seeds)."),
        ({RESNET: [20, 19, 21], IMPOOLA: [1, 2, 3], NATURE: [20, 21, 22]},
         "No winner is named: chance can explain the differences between NatureAgent and"
         " ResNetAgent."
         " The other ended lower."),
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
    (level,) = settings.group(runs.find(str(tmp_path)))
    found = [summarize_level(level, {each: Exhibit() for each in level.settings}, None)]
    text, page = documents.markdown(found, {}, "", ""), documents.html(found, "", "")
    assert sentence in text and sentence in page
    assert ('class="best"' in page) == ("No winner" not in sentence)
    assert ("probability of improvement" in text) == (len(returns[RESNET]) >= 3)


def summarized(folder: Path) -> LevelSummary:
    (level,) = settings.group(runs.find(str(folder)))
    return summarize_level(level, {each: Exhibit() for each in level.settings}, None)


def test_nothing_is_compared_before_all_runs_have_finished(tmp_path: Path) -> None:
    """Three runs that have just begun lose against three that are complete."""
    for seed in (1, 2, 3):
        write_run(tmp_path / "a" / str(seed), agent_name=RESNET, seed=seed)
        begun = rows((0, 0, -21), (400, 1, -20 - seed / 10))
        write_run(tmp_path / "b" / str(seed), begun, agent_name=IMPOOLA, seed=seed)
    found = [summarized(tmp_path)]
    text, page = documents.markdown(found, {}, "", ""), documents.html(found, "", "")
    assert "No winner is named yet: not all runs have finished." in text
    assert "probability of improvement" not in text and 'class="best"' not in page
    assert "so nothing is compared yet" in text


def test_repeats_of_a_seed_are_named_and_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "pong", seed=1)
    write_run(tmp_path / "pong.1", rows((0, 0, -21), (400, 1, -21)), seed=1)
    summary = summarized(tmp_path)
    assert facts.headline(summary) == (
        "ShallowConvNetAgent ended with a mean return of 20.0 (1 seed)."
    )
    assert any(
        note.endswith(f"are left out: {tmp_path / 'pong.1'}.") for note in facts.notes(summary)
    )


def test_a_run_that_reached_its_return_has_finished(tmp_path: Path) -> None:
    """--stop_at_return ends it before its frames."""
    path = write_run(tmp_path, rows((0, 0, 0), (1000, 1, 20)), stop_at_return=20.0)
    (path / "status.json").write_text(json.dumps({"state": "done"}))
    titles, (cells,) = table.table(summarized(tmp_path))
    assert dict(zip(titles, cells, strict=True))["seeds"] == "1"


def test_a_single_run_has_no_columns_of_a_target(tmp_path: Path) -> None:
    titles, _ = table.table(summarized(write_run(tmp_path)))
    assert not [title for title in titles if title.startswith(("frames to", "minutes to"))]


def test_evaluations_that_were_played_differently_are_not_averaged(tmp_path: Path) -> None:
    """Greedy games are not those of a sampled policy."""
    header = "wall_time_s,environment_frames,level_name,played,return_mean,episodes,policy"
    for seed, policy in ((1, "greedy"), (2, "sampled"), (3, "sampled")):
        path = write_run(tmp_path / str(seed), seed=seed, eval_every=1000)
        line = f"240,4000,a,other seeds,{10 * seed},50,{policy}"
        (path / "evaluation.csv").write_text(f"{header}\n{line}\n")
    summary = summarized(tmp_path)
    assert summary.rows[0].evaluation is None
    assert any("evaluated in different ways" in note for note in facts.notes(summary))
    plain = list(csv.DictReader(io.StringIO(table.as_csv([summary]))))
    assert plain[0]["evaluation_played"] == "other seeds (50 games, greedy actions)"
    assert [row["last_evaluation"] for row in plain] == ["10.0", "20.0", "30.0"]


def test_each_protocol_stands_for_itself(tmp_path: Path) -> None:
    """They have semicolons of their own."""
    for seed, name in ((1, "classic"), (2, "sticky")):
        path = write_run(tmp_path / name, seed=seed) / "config.json"
        path.write_text(path.read_text().replace("the usual protocol", f"ALE; {name}"))
    summary = summarized(tmp_path)
    found = dict(facts.facts(summary.level.runs))
    assert found["protocol 1"] == f"ALE; classic (of {tmp_path / 'classic'})"
    plain = list(csv.DictReader(io.StringIO(table.as_csv([summary]))))
    assert [row["protocol"] for row in plain] == ["ALE; classic", "ALE; sticky"]
