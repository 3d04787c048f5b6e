"""The charts, as Altair values over named data sets. The page fills the data sets in the browser; figures.py fills them here.

    all     one row per method, seed and round: method, seed, round, accuracy, participation
    one     one row per round of the chosen run, with every column of payload.SERIES
    bounds  the same, folded: round, kind, value
    methods one row per method: method, number, participation, score;  seeds: the same, per run
    weighed, worth  round, kind, value: what silos compared, and what it was worth, means over silos
    curve   r, u of one silo's fitted utility;  points: r, u as measured;  marks: r, u, gamma

Colours are Okabe and Ito's, which survive colour blindness; dashes and shapes say the same once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from feduca.report.palette import DASHES, OKABE_ITO, STATUS

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")

HEIGHT = 220


def style(index: int) -> tuple[str, Sequence[int], str]:
    """Colour, dash and shape of the index-th method: 8 x 4 methods before any two look the same."""
    return OKABE_ITO[index % len(OKABE_ITO)], DASHES[index // len(OKABE_ITO) % len(DASHES)], SHAPES[index % len(SHAPES)]


def charts(methods: Sequence[str], rounds: int, score: str = "accuracy", deployed: bool = False) -> dict[str, Any]:
    """Every chart of the page, by name. `methods` fixes who gets which colour; `rounds` the common axis.

    `score` is what models are judged by: the column is called accuracy, whatever it is. `deployed`: methods are compared by what
    silos deploy, not by the shared model.
    """
    return {
        "trade": trade(methods, f"{score} of {'what silos deploy' if deployed else 'the shared model'}", score),
        "accuracy": over_rounds("accuracy", f"{score} of the shared model", methods, rounds, score),
        "participation": over_rounds("participation", "share of silos that joined", methods, rounds),
        "weighed": kinds("weighed", WEIGHED, rounds, score),
        "worth": kinds("worth", WORTH, rounds, score),
        "curve": utility_curve(),
        "slack": one_line("slack", "slack (sum over silos)", rounds),
        "gap": one_line("gap", "certified gap of the solver", rounds, alt.Scale(type="symlog", constant=1e-12), ".1e"),
        "discrepancy": bounds(rounds),
        "jensen": one_line("jensen", "sum of Jensen gaps", rounds),
        "promise": promise(rounds),
        "concession": one_line("concession", "mean concession c of accepted offers", rounds),
    }


TITLES = {
    "trade": "Who stays, and how good it is",
    "accuracy": "Accuracy of the shared model",
    "participation": "Participation",
    "weighed": "What silos compared, on validation data",
    "worth": "What silos gain, on untouched data",
    "curve": "One silo's utility curve",
    "slack": "Slack: demand the weights could not meet",
    "gap": "Solver certificate",
    "discrepancy": "Discrepancy from the target weights, and its bounds",
    "jensen": "Jensen gaps",
    "promise": "Promise kept: realised minus promised utility",
    "concession": "Concession of accepted offers",
}


def _x(rounds: int) -> alt.X:
    return alt.X(
        "round:Q", title="round", scale=alt.Scale(domain=[1, max(2, rounds)], nice=False), axis=alt.Axis(tickMinStep=1)
    )


def _some(rounds: int, most: int = 60) -> str:
    """The rounds that get a mark of their own: all of them, or about `most` evenly spaced ones."""
    return f"datum.round % {max(1, rounds // most)} == 0"


def titles(score: str = "accuracy") -> dict[str, str]:
    """What the charts are called."""
    return TITLES | {"accuracy": f"{score[:1].upper()}{score[1:]} of the shared model"}


def _looks(methods: Sequence[str]) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Who looks how. A page draws its own legend, which wraps; files have this one."""
    styles, domain = [style(i) for i in range(len(methods))], list(methods)
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0, symbolStrokeWidth=2, symbolOpacity=1)
    colour = alt.Color("method:N", scale=alt.Scale(domain=domain, range=[s[0] for s in styles]), legend=legend)
    shape = alt.Shape("method:N", scale=alt.Scale(domain=domain, range=[s[2] for s in styles]), legend=legend)
    dash = alt.StrokeDash("method:N", scale=alt.Scale(domain=domain, range=[list(s[1]) for s in styles]), legend=legend)
    return colour, shape, dash


def trade(methods: Sequence[str], title: str, score: str = "accuracy") -> Any:
    """The score against participation: a mark and a number per method, a small mark per seed."""
    colour, shape, _ = _looks(methods)
    share = score == "accuracy"
    x = alt.X(
        "participation:Q",
        title="share of silos in, all rounds",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    y = alt.Y(
        "score:Q", title=title, scale=alt.Scale(zero=False, padding=18), axis=alt.Axis(format="%" if share else ".3~g")
    )
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("participation:Q", title="in", format=".1%"),
        alt.Tooltip("score:Q", title=score, format=".1%" if share else ".3f"),
    ]
    known = "isValid(datum.score) && isValid(datum.participation)"
    mean = alt.Chart(alt.NamedData("methods")).transform_filter(known).encode(x=x, y=y, tooltip=tooltip)
    seeds = alt.Chart(alt.NamedData("seeds")).transform_filter(known).encode(x=x, y=y, color=colour, shape=shape)
    marks = mean.mark_point(size=170, filled=True, opacity=1).encode(color=colour, shape=shape)
    numbers = mean.mark_text(dx=14, dy=-9, fontSize=13, fontWeight="bold", clip=False).encode(text="number:Q")
    alone = (
        alt.Chart(alt.NamedData("methods"))
        .transform_aggregate(alone="mean(alone)")
        .transform_filter("isValid(datum.alone)")
        .encode(y="alone:Q")
    )
    level = alone.mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
    named = alone.mark_text(align="left", dy=-7, fontSize=12).encode(x=alt.value(6), text=alt.value("alone"))
    seeded = seeds.mark_point(size=25, filled=True, opacity=0.55)
    return (level + named + seeded + marks + numbers).properties(height=HEIGHT + 120, width="container")


WEIGHED = {"own": "its own model", "offered": "what it was offered"}
WORTH = {"alone": "the model alone", "deployed": "what it deploys"}


def kinds(data: str, names: Mapping[str, str], rounds: int, score: str) -> Any:
    """Some means over silos, a line each."""
    share, titles = score == "accuracy", list(names.values())
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0, symbolOpacity=1, symbolStrokeWidth=2)
    looks = [OKABE_ITO[1], OKABE_ITO[0]], [list(d) for d in DASHES[1::-1]]
    base = alt.Chart(alt.NamedData(data)).encode(
        x=_x(rounds),
        y=alt.Y(
            "value:Q",
            title=f"{score}, mean over silos",
            scale=alt.Scale(zero=False),
            axis=alt.Axis(format="%" if share else ".3~g"),
        ),
        color=alt.Color("kind:N", scale=alt.Scale(domain=titles, range=looks[0]), legend=legend),
        strokeDash=alt.StrokeDash("kind:N", scale=alt.Scale(domain=titles, range=looks[1]), legend=legend),
        tooltip=[
            alt.Tooltip("kind:N"),
            alt.Tooltip("round:Q"),
            alt.Tooltip("value:Q", format=".1%" if share else ".3f"),
        ],
    )
    return alt.layer(base.mark_line(strokeWidth=2)).properties(height=HEIGHT, width="container")


def over_rounds(name: str, title: str, methods: Sequence[str], rounds: int, score: str = "accuracy") -> Any:
    """One line per method: the mean over seeds, and the band from the lowest to the highest seed."""
    colour, shape, dash = _looks(methods)
    share = score == "accuracy"  # a share of something; another score may be anything
    y = alt.Y(
        f"mean({name}):Q",
        title=title,
        axis=alt.Axis(format="%" if share else ".3~g"),
        scale=alt.Scale(domain=[0, 1]) if name == "participation" else alt.Scale(zero=False),
    )
    front = alt.param(name="front", value="")  # the method that the page's legend brings forward
    faint = alt.when("front == '' || datum.method == front").then(alt.value(1.0)).otherwise(alt.value(0.12))
    base = alt.Chart(alt.NamedData("all")).transform_filter(f"isValid(datum.{name})")
    band = base.mark_area(opacity=0.18).encode(
        x=_x(rounds),
        y=alt.Y(f"min({name}):Q"),
        y2=f"max({name}):Q",
        color=colour,
    )
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("round:Q"),
        alt.Tooltip(f"mean({name}):Q", title=name if share else score, format=".1%" if share else ".3f"),
    ]
    line = base.mark_line(strokeWidth=2).encode(
        x=_x(rounds), y=y, color=colour, strokeDash=dash, opacity=faint, tooltip=tooltip
    )
    marks = (
        base.transform_filter(f"{_some(rounds, 8)} || datum.round == {rounds}")
        .mark_point(size=45, filled=True)
        .encode(x=_x(rounds), y=y, color=colour, shape=shape, opacity=faint, tooltip=tooltip)
        .add_params(front)
    )
    return (band + line + marks).properties(height=HEIGHT + 40, width="container")


def one_line(name: str, title: str, rounds: int, scale: alt.Scale | None = None, format: str = ".3~g") -> Any:
    """One quantity of the chosen run."""
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    base = (
        alt.Chart(alt.NamedData("one"))
        .transform_filter(f"isValid(datum.{name})")
        .encode(
            x=_x(rounds),
            y=alt.Y(f"{name}:Q", title=title, axis=alt.Axis(format=format, tickCount=5), **options),
            tooltip=[alt.Tooltip("round:Q"), alt.Tooltip(f"{name}:Q", format=".3g")],
        )
    )
    line = base.mark_line(color=OKABE_ITO[0], strokeWidth=1.5)
    points = base.transform_filter(_some(rounds)).mark_point(color=OKABE_ITO[0], filled=True, size=18)
    return (line + points).properties(height=HEIGHT - 60, width="container")


BOUNDS = {
    "discrepancy": "discrepancy of the weights used",
    "discrepancy_bound": "bound for this round's s",
    "discrepancy_bound_expected": "bound in expectation over s",
}


def bounds(rounds: int) -> Any:
    """The discrepancy against its pointwise bound and its bound in expectation."""
    names = list(BOUNDS.values())
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=340, symbolOpacity=1)
    base = alt.Chart(alt.NamedData("bounds")).encode(
        x=_x(rounds),
        y=alt.Y("value:Q", title="squared distance to beta", axis=alt.Axis(format=".2~g")),
        color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=list(OKABE_ITO[:3])), legend=legend),
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q", format=".3g")],
    )
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=names, range=[list(d) for d in DASHES[:3]]), legend=legend)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=names, range=list(SHAPES[:3])), legend=legend)
    points = base.transform_filter(_some(rounds)).mark_point(filled=True, size=22).encode(shape=shape)
    return (base.mark_line(strokeWidth=1.5).encode(strokeDash=dash) + points).properties(
        height=HEIGHT, width="container"
    )


def promise(rounds: int) -> Any:
    """Realised minus promised utility: the mean over silos, the band from the worst to the best silo, and zero."""
    base = alt.Chart(alt.NamedData("one")).transform_filter("isValid(datum.promise_kept)")
    band = base.mark_area(opacity=0.18, color=OKABE_ITO[2]).encode(x=_x(rounds), y="promise_low:Q", y2="promise_high:Q")
    y = alt.Y("promise_kept:Q", title="realised minus promised", axis=alt.Axis(format=".2~g"))
    tooltip = [
        alt.Tooltip("round:Q"),
        alt.Tooltip("promise_kept:Q", title="mean", format="+.3f"),
        alt.Tooltip("promise_low:Q", title="worst silo", format="+.3f"),
        alt.Tooltip("promise_high:Q", title="best silo", format="+.3f"),
    ]
    line = base.mark_line(color=OKABE_ITO[2], strokeWidth=2).encode(x=_x(rounds), y=y, tooltip=tooltip)
    points = base.transform_filter(_some(rounds)).mark_point(color=OKABE_ITO[2], filled=True, size=18)
    points = points.encode(x=_x(rounds), y=y, tooltip=tooltip)
    zero = alt.Chart(alt.InlineData([{"zero": 0}])).mark_rule(strokeDash=[4, 4], opacity=0.7).encode(y="zero:Q")
    return (band + line + points + zero).properties(height=HEIGHT, width="container")


def utility_curve() -> Any:
    """One silo in one round: measured points, the fit, the threshold gamma, and the weight it is asked to judge."""
    x = alt.X("r:Q", title="aggregation weight r", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("u:Q", title="utility u(r)", scale=alt.Scale(zero=False))
    fit = alt.Chart(alt.NamedData("curve")).mark_line(color=OKABE_ITO[0], strokeWidth=2.5, interpolate="monotone")
    points = alt.Chart(alt.NamedData("points")).mark_point(color=OKABE_ITO[4], size=40, filled=False, strokeWidth=1.5)
    mark = alt.Chart(alt.NamedData("marks"))
    gamma = mark.transform_filter("isValid(datum.gamma)").mark_rule(
        color=OKABE_ITO[1], strokeDash=[6, 3], strokeWidth=2
    )
    weight = mark.transform_filter("isValid(datum.r)").mark_rule(color=OKABE_ITO[2], strokeDash=[2, 2], strokeWidth=2)
    here = mark.transform_filter("isValid(datum.u)").mark_point(
        color=OKABE_ITO[2], shape="diamond", size=160, filled=True, opacity=1
    )
    said = [alt.Tooltip("r:Q", format=".3f"), alt.Tooltip("u:Q", format=".3f")]
    return alt.layer(
        points.encode(x=x, y=y, tooltip=said),
        fit.encode(x=x, y=y, tooltip=said),
        gamma.encode(y="gamma:Q", tooltip=[alt.Tooltip("gamma:Q", title="threshold gamma", format=".3f")]),
        weight.encode(x="r:Q", tooltip=[alt.Tooltip("r:Q", title="weight announced", format=".3f")]),
        here.encode(x=x, y=y, tooltip=said),
    ).properties(height=HEIGHT + 60, width="container")


LETTERS = {word[0]: word for word in STATUS}


def strip(silos: Sequence[str]) -> Any:
    """Silos by rounds, for figures (the page draws its own on a canvas).

    Data `strip`: silo, start, end, status; `fallbacks`: round.
    """
    cells = (
        alt.Chart(alt.NamedData("strip"))
        .mark_rect(stroke=None)
        .encode(
            x=alt.X("start:Q", title="round", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1, grid=False)),
            x2="end:Q",
            y=alt.Y("silo:N", title=None, sort=list(silos), scale=alt.Scale(paddingInner=0.12)),
            color=alt.Color(
                "status:N",
                scale=alt.Scale(domain=list(STATUS), range=list(STATUS.values())),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
        )
    )
    fallbacks = (
        alt.Chart(alt.NamedData("fallbacks"))
        .mark_point(shape="triangle-down", filled=True, color=OKABE_ITO[1], size=60, opacity=1)
        .encode(x="round:Q", y=alt.value(-6))
    )
    return (cells + fallbacks).properties(height=min(14 * len(silos), 600))


# ---------------------------------------------------------------------------------------------------------------------
# Rows for the data sets, the way the page's script makes them


def all_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `all` data set of a payload."""
    return [
        {
            "method": run["label"],
            "seed": run["seed"],
            "round": round,
            **{name: run["series"][name][i] for name in ("accuracy", "participation") if name in run["series"]},
        }
        for run in data["runs"]
        for i, round in enumerate(run["series"]["round"])
    ]


def one_rows(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `one` data set of one run of a payload."""
    return [{name: column[i] for name, column in run["series"].items()} for i in range(len(run["series"]["round"]))]


def strip_rows(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `strip` data set of one run: rounds of equal status in one row each."""
    rows, rounds = [], [*run["strip_rounds"], run["strip_rounds"][-1] + 1] if run["strip_rounds"] else []
    for name, letters in zip(run["silos"], run["strip"]):
        begin = 0
        for t in range(1, len(letters) + 1):
            if t == len(letters) or letters[t] != letters[begin]:
                status = LETTERS.get(letters[begin], "absent")
                if letters[begin] != "n":  # who was not asked has no cell
                    rows.append({"silo": name, "start": rounds[begin] - 0.5, "end": rounds[t] - 0.5, "status": status})
                begin = t
    return rows


def bound_rows(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `bounds` data set of one run of a payload."""
    return kind_rows(run, BOUNDS)


def kind_rows(run: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The `weighed` and `worth` data sets of one run of a payload."""
    return [
        {"round": row["round"], "kind": title, "value": row[name]}
        for name, title in names.items()
        for row in one_rows(run)
        if row.get(name) is not None
    ]


def trade_rows(data: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The `methods` and `seeds` data sets of a payload."""
    column = data["compared_by"]
    methods = [
        {key: row[key] for key in ("method", "number", "participation")}
        | {"score": row[column], "alone": data["alone"] if column == "deployed" else None}
        for row in data["table"]
    ]
    seeds = [
        {"method": run["label"], "participation": run["figures"]["participation"], "score": run["figures"][column]}
        for run in data["runs"]
        if run["figures"] and len(data["runs"]) > len(methods)
    ]
    return {"methods": methods, "seeds": seeds}


def curve_sets(
    data: Mapping[str, Any], run: Mapping[str, Any], snapshot: int, silo: int
) -> dict[str, list[dict[str, Any]]]:
    """The `curve`, `points` and `marks` data sets of one silo in one kept round."""
    scale = 1e-4
    _, _, announced, gamma, u, *_, curve, points = run["details"]["silos"][snapshot][silo]
    return {
        "curve": [{"r": r, "u": v * scale} for r, v in zip(data["grid"], curve) if v is not None],
        "points": [{"r": r, "u": v * scale} for r, v in zip(run["details"]["places"], points) if v is not None],
        "marks": [
            {
                "r": None if announced is None else announced * scale,
                "gamma": None if gamma is None else gamma * scale,
                "u": None if u is None else u * scale,
            }
        ],
    }
