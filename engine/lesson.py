"""A lesson's folder -> `Lesson`, and the `RunConfig` of each of its runs. All validation of lesson.toml is here.

Settings are layered, later ones win:  [base] <- [profiles.P] <- [arms.ROLE] <- [profiles.P.arms.ROLE]
Every problem of every lesson is collected and reported at once, each with its file, line and key.
"""

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from engine.errors import Collected, UserError, nearest, problem, shown
from engine.toml import Frozen, as_problem, dotted, line_of, load, read_toml, spec_problem

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
# Of arms, profiles and variants: they become folders, and names in expressions.
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
LessonId = Annotated[str, Field(pattern=r"^[1-9][0-9]*\.[1-9][0-9]*$")]  # a string: "1.10" is not "1.1"
RESERVED = {
    "settings",
    "reference",
    "seeds",
    "diff",
    "sweep",
    "best",
    "each_seed",
    "count_seeds",
}  # names that expressions already have
# What arms can be compared by: final numbers of a run's summary. And what curves can show: columns of its metrics.
FinalNumber = Literal[
    "val_loss", "val_bpb", "train_loss", "redone_steps", "redone_s", "checkpoint_s", "wall_s", "tokens_per_s", "peak_mem_bytes"
]  # fmt: skip
Column = Literal["train_loss", "val_loss", "val_bpb", "lr", "grad_norm", "tokens_per_s", "peak_mem_bytes"]


class Settings(Frozen):
    """Everything that decides what one arm computes. A new field needs a default, so that it makes no old run stale."""

    # Text (training/corpus.py, training/tokens.py)
    corpus: Annotated[str, Field(min_length=1)]  # e.g. "shakespeare"; a path; "hub:OWNER/NAME/FOLDER"
    corpus_tokens: Whole = 0  # of a hub: how many tokens to take, 0 = all
    text_column: str = "text"  # of .jsonl and .parquet files
    tokenizer: Annotated[str, Field(pattern=r"^(bytes|gpt2|bpe:[1-9][0-9]*)$")] = (
        "bytes"  # bpe:2048 is trained on the corpus
    )

    # Model (training/model.py)
    layers: Count
    heads: Count
    kv_heads: Whole = 0  # key and value heads, each shared by heads / kv_heads query heads; 0 = one each
    width: Count  # numbers per token; a multiple of heads
    mlp_width: Whole = 0  # numbers inside the MLP; 0 = 4 times width
    context: Count  # tokens that the model sees at once
    norm: Literal["layer", "rms", "none"] = "layer"
    position: Literal["learned", "rope"] = "learned"
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0  # longest wavelength of rope is about 2π times this, in tokens
    mlp: Literal["gelu", "gelu_exact", "swiglu"] = "gelu"
    bias: bool = True  # in linear layers and LayerNorm; GPT-2 has it, Llama has not
    tied: bool = True  # one matrix for reading and guessing tokens
    init_std: Annotated[float, Field(gt=0)] = 0.02  # GPT-2's: a new model's logits are near 0, its loss near ln V
    dropout: Share = 0.0  # share of activations zeroed in training; it draws from a random generator at every step

    # Optimisation (training/optim.py)
    steps: Whole = 0  # optimizer updates; or state `tokens`
    tokens: Whole = 0  # tokens to train on, rounded up to whole steps; or state `steps`
    batch: Count  # sequences of `context` tokens a step, all micro-batches together
    accumulate: Count = 1  # micro-batches a step: the same gradient in less memory
    lr: Annotated[float, Field(gt=0)]  # peak learning rate
    lr_final_share: Share = 0.1  # the schedule ends at this share of lr
    schedule: Literal["constant", "cosine", "linear-decay"] = "cosine"
    decay_share: Annotated[float, Field(gt=0, le=1)] = (
        0.2  # of linear-decay: the last share of steps, in which lr falls
    )
    warmup: Whole = 0  # steps of linear ramp to lr
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # on matrices only
    beta1: Share = 0.9
    beta2: Share = 0.95  # 0.999 remembers 1,000 steps: too long for a run that short
    clip: Annotated[float, Field(ge=0)] = 1.0  # largest gradient norm; 0 = never clip

    # Evaluation and samples (training/evaluate.py, training/generate.py)
    eval_every: Count = 100  # steps
    eval_tokens: Count = 32_768  # of the validation text, always the same ones
    sample_every: Whole = 0  # steps; 0 = no samples
    sample_prompts: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    sample_tokens: Count = 64  # new tokens a sample
    temperature: Annotated[float, Field(ge=0)] = 1.0  # 0 = always the likeliest token
    top_k: Whole = 0  # draw from the k likeliest tokens only; 0 = from all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # draw from the likeliest tokens that together have this share

    # Checkpoints and faults (training/checkpoint.py)
    checkpoint_every: Count  # steps
    kills: Whole = 0  # SIGKILLs of the run, at steps drawn from the seed
    resume_without: Literal["nothing", "optimizer", "generators"] = "nothing"  # what a resume deliberately forgets

    # Deliberate breakage
    overfit_one_batch: bool = False  # every step reads the batch of step 1
    shift_targets: bool = True  # false: each token is its own target, and the loss means nothing
    may_diverge: bool = False  # an infinite or undefined loss ends the run as "diverged" instead of as an error

    # Machine
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"  # auto: see decide_precision in training/machine.py
    compile: Literal["off", "on", "auto"] = "off"  # auto: see decide_compile there
    threads: Count = 1  # CPU threads an arm; another number gives other bits, so it is never derived from the machine

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        """All misfits in one message: whoever mends one should not meet the next only then."""
        kv_heads = self.kv_heads or self.heads
        misfits = {
            f"width {self.width} is not a multiple of heads {self.heads}": self.width % self.heads,
            f"heads {self.heads} is not a multiple of kv_heads {kv_heads}": self.heads % kv_heads,
            f"rope turns pairs of numbers, and width / heads = {self.width // self.heads} is odd": self.position
            == "rope"
            and self.width // self.heads % 2,
            f"batch {self.batch} is not a multiple of accumulate {self.accumulate}": self.batch % self.accumulate,
            "state either steps or tokens": bool(self.steps) == bool(self.tokens),
            f"warmup {self.warmup} leaves none of the {self.total_steps} steps at full learning rate": self.total_steps
            and self.warmup >= self.total_steps,
            f"{self.kills} kills do not fit between {self.total_steps} steps": self.total_steps
            and self.kills >= self.total_steps,
            "samples need sample_prompts": self.sample_every and not self.sample_prompts,
        }
        if any(misfits.values()):
            raise ValueError("; ".join(text for text, misfit in misfits.items() if misfit))
        return self

    @property
    def total_steps(self) -> int:
        return self.steps or -(-self.tokens // (self.batch * self.context))

    def stated(self) -> dict[str, Any]:
        """The settings that differ from the defaults: what a run folder keeps and what staleness compares."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class RunConfig:
    """One run to train: e.g. lesson "1.7", profile "cpu", arm "often", seed 3."""

    lesson: str
    profile: str
    arm: str
    seed: int
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.arm}-s{self.seed}"


class Claim(Frozen):
    text: str
    holds: str  # an expression; false fails the build


class Chart(Frozen):
    # A metric against steps; steps done against time, with what was redone; a final number against the swept setting;
    # a final number of each arm.
    kind: Literal["curve", "progress", "sweep", "bars"]
    metric: Column | FinalNumber = "val_loss"  # a column of metrics for a curve, else a final number
    title: str
    y_label: str
    x_label: str = "step"  # of a sweep: what is swept, e.g. "learning rate"
    caption: str  # what to look at, with expressions
    from_step: Whole = 0  # of a curve: leave out what comes before, e.g. the first steep fall
    to_step: Whole = 0  # of a curve: leave out what comes after; 0 = nothing
    x: Literal["step", "tokens", "bytes", "gflops", "wall_s"] = "step"  # of a curve: the axis that it opens with
    arms: list[str] = []  # which arms to draw; all of them if empty

    @model_validator(mode="after")
    def _metric_of_its_kind(self) -> "Chart":
        known = get_args(Column if self.kind == "curve" else FinalNumber)
        if self.metric not in known:
            raise ValueError(f"a chart of kind {self.kind} cannot show {self.metric}: choose {', '.join(known)}")
        return self


class Reference(Frozen):
    """What the reference lab saw. Its figures are theirs: cited, never computed."""

    source: str
    url: str
    says: str
    agrees: str  # our comment, with expressions
    figures: dict[str, float]


class Arm(Frozen):
    """One arm as the lesson states it; all that is no key of this class is a setting."""

    label: str  # how the page names it
    role: Literal["compared", "control", "ablation", "sweep"] = "compared"
    also_changes: list[str] = []  # settings that only this arm may change beside the lesson's `change`
    seed_offset: Whole = 0  # added to the lesson's seeds; where change = ["seed"], it is what makes the arms differ
    settings: dict[str, Any] = {}


class Sweep(Frozen):
    """Several values of one setting, each trained in every variant; drawn as final metric against value."""

    key: str  # e.g. "lr"
    values: Annotated[list[int | float], Field(min_length=2)]
    variants: Annotated[dict[Name, Arm], Field(min_length=1)]  # e.g. two model sizes: settings beside the swept one

    def arms(self) -> dict[str, Arm]:
        """One arm per variant and value, e.g. "small-0.001"."""
        return {
            sweep_arm(name, value): Arm(
                label=f"{variant.label}, {self.key} {value:g}",
                role="sweep",
                also_changes=[self.key, *variant.settings],
                settings=variant.settings | {self.key: value},
            )
            for name, variant in self.variants.items()
            for value in self.values
        }


def sweep_arm(variant: str, value: float) -> str:
    return f"{variant}-{value:g}"


class Metric(Frozen):
    name: FinalNumber
    label: str
    unit: str
    better: Literal["lower", "higher"]

    @property
    def title(self) -> str:
        """e.g. "validation loss, nats per token"; "redone steps" says its unit itself."""
        return self.label if self.label.endswith(self.unit) else f"{self.label}, {self.unit}"


class Spec(Frozen):
    """lesson.toml, key by key."""

    id: LessonId
    topic: str
    title: str
    teaches: str
    question: str
    result: str
    status: Literal["announced", "published"]
    date: datetime.date
    change: list[str]
    alone: bool = False  # lessons about time: one run after the other, arms taking turns, nothing beside them
    headline: str  # the profile that carries prose and claims
    seeds: Annotated[list[Whole], Field(min_length=1)]
    compare: Annotated[list[tuple[str, str]], Field(min_length=1)]
    metric: Metric
    base: dict[str, Any]
    profiles: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    arms: Annotated[dict[Name, Arm], Field(min_length=2)]
    sweep: Sweep | None = None
    charts: Annotated[list[Chart], Field(min_length=1)]
    claims: Annotated[list[Claim], Field(min_length=1)]
    reference: Reference | None = None

    @model_validator(mode="before")
    @classmethod
    def _split_arms_and_pairs(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """[arms.ROLE] mixes our keys with settings, and TOML has no tuples."""
        raw = dict(raw)
        if isinstance(raw.get("arms"), dict):
            raw["arms"] = {role: _split_arm(arm) for role, arm in raw["arms"].items()}
        if isinstance(raw.get("sweep"), dict) and isinstance(raw["sweep"].get("variants"), dict):
            variants = {name: _split_arm(variant) for name, variant in raw["sweep"]["variants"].items()}
            raw["sweep"] = raw["sweep"] | {"variants": variants}
        if isinstance(raw.get("compare"), list):
            raw["compare"] = [tuple(pair) if isinstance(pair, list) else pair for pair in raw["compare"]]
        return raw

    @property
    def all_arms(self) -> dict[str, Arm]:
        """The stated arms, then those of the sweep."""
        return self.arms | (self.sweep.arms() if self.sweep else {})


def _split_arm(arm: Any) -> Any:
    if not isinstance(arm, dict):
        return arm
    ours = {key: value for key, value in arm.items() if key in Arm.model_fields and key != "settings"}
    return ours | {"settings": {key: value for key, value in arm.items() if key not in ours}}


@dataclass(frozen=True)
class Lesson:
    """A valid lesson: its spec, its folder, and the settings of each arm in each profile."""

    folder: Path
    spec: Spec
    settings: dict[str, dict[str, Settings]]  # profile -> role -> settings
    lines: dict[tuple[str, ...], int]  # key -> its line in lesson.toml

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def sort_key(self) -> tuple[int, ...]:
        return id_key(self.spec.id)

    @property
    def toml(self) -> Path:
        return self.folder / "lesson.toml"

    @property
    def page(self) -> Path:
        return self.folder / "page.md"

    @property
    def pair(self) -> tuple[str, str]:
        """The two arms that the headline verdict compares."""
        return self.spec.compare[0]

    def where(self, *key: str) -> str:
        return f"{shown(self.toml)}:{line_of(self.lines, key)} {dotted(key)}"

    @property
    def arms(self) -> dict[str, Arm]:
        return self.spec.all_arms

    def runs(self, profile: str, seeds: list[int], arms: list[str]) -> list[RunConfig]:
        """Seed by seed, so that the first complete comparison is there as early as possible."""
        settings, offset = self.settings[profile], {role: arm.seed_offset for role, arm in self.arms.items()}
        return [RunConfig(self.id, profile, arm, seed + offset[arm], settings[arm]) for seed in seeds for arm in arms]

    @cached_property
    def changed_settings(self) -> list[str]:
        """The settings of the headline profile that are not the same in every stated arm, in the order of the class."""
        arms = [self.settings[self.spec.headline][role] for role in self.spec.arms]
        return [key for key in Settings.model_fields if len({getattr(arm, key) for arm in arms}) > 1]


def id_key(lesson_id: str) -> tuple[int, ...]:
    """Sorts 1.9 < 1.10 < 2.1."""
    return tuple(int(part) for part in lesson_id.split("."))


def load_lessons(folder: Path) -> list[Lesson]:
    """Every lesson below `folder`, by id. UserError with all problems of all lessons."""
    if not folder.is_dir():
        raise UserError(problem(shown(folder), "no such folder", next="name the lessons' folder with --lessons DIR"))
    collected = Collected()
    found = [
        collected.get(lambda toml=toml: load_lesson(toml.parent), None) for toml in sorted(folder.glob("*/lesson.toml"))
    ]
    lessons = [lesson for lesson in found if lesson]
    collected.problems += [*_folders_without_spec(folder), *_ids_used_twice(lessons)]
    collected.raise_all()
    return sorted(lessons, key=lambda lesson: lesson.sort_key)


def _folders_without_spec(folder: Path) -> Iterator[str]:
    for page in sorted(folder.glob("*/page.md")):
        if not (page.parent / "lesson.toml").exists():
            yield problem(shown(page.parent), "a page without lesson.toml", next="write lesson.toml beside page.md")


def _ids_used_twice(lessons: list[Lesson]) -> Iterator[str]:
    first: dict[str, Lesson] = {}
    for lesson in lessons:
        other = first.setdefault(lesson.id, lesson)
        if other is not lesson:
            yield problem(
                lesson.where("id"),
                "this id is used twice",
                got=f'"{lesson.id}", as in {other.where("id")}',
                next="give one of the two lessons another id",
            )


def load_lesson(folder: Path) -> Lesson:
    """One lesson from its folder. UserError with all problems."""
    toml = folder / "lesson.toml"
    raw, lines = read_toml(toml)
    problems = (
        []
        if (folder / "page.md").is_file()
        else [problem(shown(folder / "page.md"), "missing", next="write the lesson's prose there")]
    )
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        problems += [spec_problem(toml, lines, detail, Spec) for detail in error.errors()]
        raise UserError(*problems) from None
    settings, found = _resolve_settings(toml, lines, spec)
    lesson = Lesson(folder, spec, settings, lines)
    problems += found
    problems += _names_that_do_not_exist(lesson)
    if not problems:
        problems += _undeclared_changes(lesson)
    if problems:
        raise UserError(*problems)
    return lesson


def _resolve_settings(toml: Path, lines: dict, spec: Spec) -> tuple[dict[str, dict[str, Settings]], list[str]]:
    resolved: dict[str, dict[str, Settings]] = {}
    problems: list[str] = []
    arms = spec.all_arms
    for profile, layer in spec.profiles.items():
        overrides = layer.get("arms", {})
        if not isinstance(overrides, dict) or not all(isinstance(override, dict) for override in overrides.values()):
            where = f"{shown(toml)}:{line_of(lines, ('profiles', profile, 'arms'))} profiles.{profile}.arms"
            problems.append(problem(where, "wrong value", got=repr(overrides), expected=f"tables, as in [profiles.{profile}.arms.ROLE]", next="mend the value"))  # fmt: skip
            overrides = {}
        for role in sorted(overrides.keys() - arms.keys()):
            where = (
                f"{shown(toml)}:{line_of(lines, ('profiles', profile, 'arms', role))} profiles.{profile}.arms.{role}"
            )
            problems.append(
                problem(where, "no such arm", got=role, expected=nearest(role, list(arms)), next="rename the table")
            )
        resolved[profile] = {}
        for role, arm in arms.items():
            merged, origin = {}, {}
            for path, values in (
                (("base",), spec.base),
                (("profiles", profile), {key: value for key, value in layer.items() if key != "arms"}),
                (("arms", role) if role in spec.arms else ("sweep",), arm.settings),
                (("profiles", profile, "arms", role), overrides.get(role, {})),
            ):
                merged |= values
                origin |= {key: (*path, key) for key in values}
            try:
                resolved[profile][role] = Settings.model_validate(merged)
            except ValidationError as error:
                for detail in error.errors():
                    # Where it was stated; what no layer stated (a missing key, a misfit of two) is the profile's.
                    key = origin.get(str(detail["loc"][0]) if detail["loc"] else "", ("profiles", profile))
                    where = f"{shown(toml)}:{line_of(lines, key)} {dotted(key)}"
                    problems.append(as_problem(where, detail, Settings))
    return resolved, list(dict.fromkeys(problems))  # a mistake in [base] shows in every arm: once is enough


def _names_that_do_not_exist(lesson: Lesson) -> Iterator[str]:
    spec, roles, keys = lesson.spec, list(lesson.spec.arms), list(Settings.model_fields)
    named = [(("compare",), "no such arm", name, roles) for pair in spec.compare for name in pair]
    named += [(("headline",), "no such profile", spec.headline, list(spec.profiles))]
    named += [(("change",), "no such setting", key, [*keys, "seed"]) for key in spec.change]
    named += [(("sweep", "key"), "no such setting", spec.sweep.key, keys)] if spec.sweep else []
    named += [
        (("arms", role, "also_changes"), "no such setting", key, keys)
        for role, arm in spec.arms.items()
        for key in arm.also_changes
    ]
    named += [
        (("charts", str(n)), "no such arm", role, roles) for n, chart in enumerate(spec.charts) for role in chart.arms
    ]
    for role in [*roles, *(spec.sweep.variants if spec.sweep else ())]:
        if role in RESERVED:
            yield problem(
                lesson.where("arms", role), "expressions already have this name", got=role, next="rename the arm"
            )
    for number, chart in enumerate(spec.charts):
        if chart.kind == "sweep" and not spec.sweep:
            yield problem(
                lesson.where("charts", str(number)),
                "there is no [sweep] to draw",
                next="add [sweep], or choose another kind",
            )
        if chart.kind == "sweep" and chart.arms:
            yield problem(lesson.where("charts", str(number), "arms"), "a sweep is drawn whole", next="take arms out")
    for key, what, name, known in named:
        if name not in known:
            yield problem(lesson.where(*key), what, got=name, expected=nearest(name, known), next="rename it")


def _undeclared_changes(lesson: Lesson) -> Iterator[str]:
    """The one change: an arm may differ from the first compared arm only in what the lesson declares, and compared arms
    must differ in it."""
    first = lesson.pair[0]
    for profile, arms in lesson.settings.items():
        for key in [key for key in lesson.spec.change if key != "seed"]:
            for one, other in lesson.spec.compare:
                if getattr(arms[one], key) == getattr(arms[other], key):
                    yield problem(
                        f"{lesson.where('change')} in profile {profile}", f"arms {one} and {other} do not differ in it",
                        got=f"{key} = {getattr(arms[one], key)!r} in both", next="give one of them another value",
                    )  # fmt: skip
        for role, settings in arms.items():
            allowed = {*lesson.spec.change, *lesson.arms[role].also_changes, *lesson.arms[first].also_changes}
            for key in Settings.model_fields:
                ours, theirs = getattr(settings, key), getattr(arms[first], key)
                if ours != theirs and key not in allowed:
                    yield problem(
                        f"{lesson.where('arms', role)} in profile {profile}",
                        f"differs from arm {first} in a setting that is not declared",
                        got=f"{key} = {ours!r}, where {first} has {theirs!r}",
                        expected=f"no difference but in {', '.join(sorted(allowed))}",
                        next=f'make them equal, or name "{key}" in change or in the arm\'s also_changes',
                    )


class Announced(Frozen):
    """A lesson that is planned and has no folder yet."""

    id: LessonId
    topic: str
    teaches: str


class Phase(Frozen):
    number: Count
    title: str
    about: str = ""  # a sentence or two for its page
    announced: list[Announced] = []  # lessons without a folder; a folder of that id takes its place

    @model_validator(mode="after")
    def _announces_its_own(self) -> "Phase":
        ids = [one.id for one in self.announced]
        misfits = [one for one in ids if id_key(one)[0] != self.number or ids.count(one) > 1]
        if misfits:
            raise ValueError(
                f"announced ids must begin with {self.number}. and be there once: {', '.join(dict.fromkeys(misfits))}"
            )
        return self


class Term(Frozen):
    """A word of the field, as the glossary explains it."""

    name: str
    meaning: str  # one or two plain sentences


class Glossary(Frozen):
    """lessons/glossary.toml. A term's key is its address, and how prose marks it: [nats](glossary:nat)."""

    terms: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], Term]


def marked_terms(prose: str) -> set[str]:
    """The keys of the terms that a page.md marks."""
    return set(re.findall(r"\]\(glossary:([^)\s]+)\)", prose))


class SiteFile(Frozen):
    """lessons/site.toml."""

    title: str
    tagline: str
    about: str = ""  # who this is for, in two sentences
    lab: str = ""  # the address where experiments can be watched
    base_url: Annotated[
        str, Field(pattern=r"^https?://[^ ]+[^/]$")
    ]  # e.g. https://train.galvyn.xyz, no slash at the end
    author: str
    repository: str
    phases: list[Phase]


class Site(SiteFile):
    """All that is about the site as a whole: site.toml and the terms of glossary.toml."""

    glossary: dict[str, Term] = {}


def load_site(folder: Path) -> Site:
    """site.toml of a lessons' folder, and glossary.toml where there is one. UserError with all problems of both."""
    collected, glossary = Collected(), folder / "glossary.toml"
    site = collected.get(lambda: load(folder / "site.toml", SiteFile), None)
    terms = collected.get(lambda: load(glossary, Glossary).terms, {}) if glossary.exists() else {}
    collected.raise_all()
    return Site(**dict(site), glossary=terms)
