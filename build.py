#!/usr/bin/env python3
"""The lesson lab's command line: train a lesson's runs, record them, build the site.

python build.py --lesson 1.7 --run            train lesson 1.7 on this machine, then show its page
python build.py --site-only                   build every page from the recorded runs
"""

import argparse
import re
import shutil
import signal
import sys
from pathlib import Path

from engine.errors import UserError, disk_problem, nearest, problem, shown
from engine.lesson import Lesson, load_lessons, load_site

EXAMPLES = """\
examples:
  python build.py --lesson 1.7 --run                   train its first seed, arms side by side, and build the site
  python build.py --lesson 1.7 --run --seeds 1,2,3     three seeds
  python build.py --lesson 1.7 --run --arm often       one arm only
  python build.py --lesson 1.7 --run --profile cpu     at the size of that profile
  python build.py --lesson 1.7 --run --fresh           throw the local runs of these seeds away and start over
  python build.py --lesson 1.7 --run --resume-inexact  go on with another machine's checkpoint; the page says so
  python build.py --phase 1 --run --seeds 1            every lesson of the phase, going on where it stopped
  python build.py --queue 1.3 1.2                      these lessons, in this order
  python build.py --lesson 1.2 --plan --price 0.4      what each profile takes: memory, time, money at 0.4 an hour
  python build.py --new 1.10 "Weight decay"            a lesson folder to start from
  python build.py --lesson 1.7 --record                the local runs become the published ones
  python build.py --lesson 1.7                         build that lesson's page alone
  python build.py --site-only                          build every page; needs no torch
  python build.py --check                              validate every lesson and recorded run, build nothing
  python build.py --site-only --lessons DIR --runs DIR --out DIR --base-url https://example.org/notes

exit codes: 0 done, 1 you can mend it (the message says how), 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""

GOES_WITH = {  # option -> the commands that it means something to
    **dict.fromkeys(("fresh", "seeds", "arm", "resume_inexact"), ("run", "queue")),
    "profile": ("run", "queue", "record", "plan"),
    "price": ("plan",),
    "base_url": ("site_only", "one_page", "run", "queue", "check"),
}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    try:
        return options.command(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(disk_problem(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build.py", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)  # fmt: skip
    what = parser.add_argument_group("what to do")
    what.add_argument("--lesson", metavar="ID", help="the lesson to work on, e.g. 1.7; alone: build its page")
    what.add_argument("--run", action="store_true", help="train the lesson's arms, going on where they stopped")
    what.add_argument(
        "--record", action="store_true", help="copy the lesson's finished local runs into the published ones"
    )
    what.add_argument("--site-only", action="store_true", help="build every page from the recorded runs")
    what.add_argument("--check", action="store_true", help="validate everything, build nothing")
    what.add_argument("--phase", type=int, metavar="N", help="with --run: all lessons of the phase, in order")
    what.add_argument(
        "--queue", nargs="+", metavar="ID", help="train these lessons one after the other, skipping what is done"
    )
    what.add_argument("--plan", action="store_true", help="say what the lesson's runs take, train nothing")
    what.add_argument("--new", nargs=2, metavar=("ID", "TITLE"), help="make a lesson folder to start from")
    how = parser.add_argument_group("how to train (with --run)")
    how.add_argument("--fresh", action="store_true", help="delete the local runs of the chosen arms and seeds first")
    how.add_argument(
        "--seeds", type=_seeds, metavar="N,N", help="which seeds, e.g. 1,2,3 (default: the lesson's first)"
    )
    how.add_argument("--arm", metavar="ARM", help="only this arm, e.g. often (default: all)")
    how.add_argument("--profile", metavar="NAME", help="e.g. cpu (default: the lesson's headline profile)")
    how.add_argument("--resume-inexact", action="store_true", help="accept a checkpoint of another machine or torch")
    how.add_argument("--price", type=float, metavar="X", help="with --plan: money per hour of the GPU")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--lessons", type=Path, default=Path("lessons"), metavar="DIR", help="the lessons' folder (default: lessons)"
    )
    where.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="the runs' folder (default: runs)"
    )
    where.add_argument(
        "--out", type=Path, default=Path("site"), metavar="DIR", help="the site's folder (default: site)"
    )
    where.add_argument("--base-url", metavar="URL", help="where the site will live (default: base_url of site.toml)")
    options = parser.parse_args(arguments)
    options.command = _chosen_command(parser, options)
    return options


def _chosen_command(parser: argparse.ArgumentParser, options: argparse.Namespace):
    chosen = [
        name for name in ("run", "record", "site_only", "check", "plan", "new", "queue") if getattr(options, name)
    ]
    if len(chosen) > 1:
        parser.error(f"{' and '.join('--' + name.replace('_', '-') for name in chosen)} do not go together: choose one")
    if not chosen and not options.lesson:
        parser.error("nothing to do: try --site-only, or --lesson 1.7 --run (--help shows all)")
    name = chosen[0] if chosen else "one_page"
    if options.phase and name != "run":
        parser.error("--phase goes with --run")
    if options.phase and options.lesson:
        parser.error("--phase is about all its lessons: leave --lesson out")
    if name in ("run", "record", "plan") and not options.lesson and not options.phase:
        parser.error(f"--{name} needs --lesson, e.g. --lesson 1.7 --{name}")
    if name in ("site_only", "check", "new", "queue") and options.lesson:
        parser.error(f"--{name.replace('_', '-')} does not go with --lesson: leave it out")
    for option, names in GOES_WITH.items():
        if getattr(options, option) is not None and getattr(options, option) is not False and name not in names:
            parser.error(f"--{option.replace('_', '-')} goes with --{names[0].replace('_', '-')}")
    commands = {
        "run": run,
        "queue": run,
        "record": record,
        "site_only": site_only,
        "check": check,
        "plan": plan,
        "new": new,
        "one_page": one_page,
    }
    return commands[name]


def _seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds: write e.g. 1,2,3")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def run(options: argparse.Namespace) -> int:
    """Train, build the site with the local runs over the recorded ones, and say how they compare."""
    lessons = find_lessons(options)
    _require_training_room()
    from engine.training.supervise import Interrupted

    problems: list[str] = []
    for lesson in lessons:
        if len(lessons) > 1:
            print(f"lesson {lesson.id}: {lesson.spec.topic}")
        try:
            _train(lesson, options)
        except UserError as error:  # the lessons after it are still worth training
            problems += error.problems
        except Interrupted as stopped:
            print("stopped; every run saved a checkpoint, and the same command goes on from there", file=sys.stderr)
            return 128 + stopped.number
    if problems:
        raise UserError(*problems)
    gathered = _build(options, {lesson.id for lesson in lessons})
    _notices(gathered.notices)
    for lesson in lessons:
        profile = find_profile(lesson, options.profile)
        if profile != lesson.spec.headline:
            print(f"lesson {lesson.id}: trained in profile {profile}; its page shows profile {lesson.spec.headline}")
        else:
            _say_result(options, lesson, gathered)
    return 0


def _train(lesson: Lesson, options: argparse.Namespace) -> None:
    """Every chosen arm and seed of one lesson that is not finished."""
    from engine.runs import lock
    from engine.training.supervise import train_all

    profile = find_profile(lesson, options.profile)
    arms = [find_arm(lesson, options.arm)] if options.arm else list(lesson.arms)
    configs = lesson.runs(profile, options.seeds or lesson.spec.seeds[:1], arms)
    local = options.runs / "local" / lesson.id
    folders = {config.name: local / profile / config.name for config in configs}
    with lock(local / "lock", f"lesson {lesson.id}") as left_by:
        if left_by:
            print(f"lesson {lesson.id}: taking over the lock of a process that died ({left_by})")
        if options.fresh:
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)
        train_all(configs, folders, inexact=options.resume_inexact, alone=lesson.spec.alone)


def _require_training_room() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UserError(
            problem("build.py --run", "torch is not installed", next="pip install -c constraints.txt -e '.[train]'")
        )


def _say_result(options: argparse.Namespace, lesson: Lesson, gathered) -> None:
    """Whether your run matched the record, the record's verdict, and the page to open."""
    rendered = next(one for one in gathered.lessons if one.card.id == lesson.id)
    for line in rendered.said:
        print(line)
    if rendered.card.published:
        print(f"open {shown(options.out / 'lessons' / lesson.id / 'index.html')}")


def record(options: argparse.Namespace) -> int:
    """Copy finished local runs of the lesson's profile over the published ones, whole runs only."""
    from engine.runs import record_runs

    lesson = find_lesson(options)
    profile = find_profile(lesson, options.profile)
    for name in record_runs(lesson, profile, options.runs):
        print(f"recorded {name}")
    return 0


def plan(options: argparse.Namespace) -> int:
    """Parameters, arithmetic, memory, time and money of each arm of the profile, or of every profile."""
    from engine.training.plan import plan_lines

    lesson = find_lesson(options)
    for profile in [find_profile(lesson, options.profile)] if options.profile else lesson.spec.profiles:
        print(f"lesson {lesson.id}, profile {profile}")
        shapes: dict[str, list[str]] = {}  # arms of one size have one plan
        for role, settings in lesson.settings[profile].items():
            text = "\n".join(plan_lines("", settings, options.price))
            shapes.setdefault(text.partition("\n")[0], []).append(role)
            if len(shapes[text.partition("\n")[0]]) == 1:
                print(f"{role}{text}")
    return 0


def new(options: argparse.Namespace) -> int:
    from engine.new_lesson import make_lesson

    lesson_id, title = options.new
    existing = load_lessons(options.lessons) if options.lessons.is_dir() else []
    print(
        f"made {shown(make_lesson(lesson_id, title, options.lessons, existing))}; train it: python build.py --lesson {lesson_id} --run"
    )
    return 0


def site_only(options: argparse.Namespace) -> int:
    """Every page; nothing is done if nothing changed since the last build."""
    from engine.publishing.stale import Built, Contents

    built, contents = Built(options.out), Contents(options.lessons, options.runs)
    if built.key == contents.everything(_site(options), set()):
        said = built.said
    else:
        gathered = _build(options, set(), built, contents)
        said = {"pages": gathered.pages, "notices": gathered.notices}
    _notices(said["notices"])
    print(f"{said['pages']} pages in {shown(options.out)}; open {shown(options.out / 'index.html')}")
    return 0


def one_page(options: argparse.Namespace) -> int:
    """The site, with your own runs on the lesson's page."""
    lesson = find_lesson(options)
    gathered = _build(options, {lesson.id})
    _notices(gathered.notices)
    _say_result(options, lesson, gathered)
    return 0


def check(options: argparse.Namespace) -> int:
    from engine.publishing.site import gather

    lessons = load_lessons(options.lessons)
    gathered = gather(_site(options), lessons, options.lessons, options.runs, with_local=set())
    _notices(gathered.notices)
    print(f"{len(lessons)} lessons and {sum(one.runs for one in gathered.lessons)} runs are good")
    return 0


def _build(options: argparse.Namespace, with_local: set[str], built=None, contents=None):
    """The site, written; what did not change since the last build is kept."""
    from engine.publishing.site import gather, write
    from engine.publishing.stale import Built, Contents

    built, contents = built or Built(options.out), contents or Contents(options.lessons, options.runs)
    site, lessons = _site(options), load_lessons(options.lessons)
    gathered = gather(site, lessons, options.lessons, options.runs, with_local=with_local, contents=contents)
    write(gathered, options.runs, options.out, built, contents.everything(site, with_local))
    return gathered


def _notices(notices: list[str]) -> None:
    for notice in notices:
        print(notice, file=sys.stderr)


def _site(options: argparse.Namespace):
    site = load_site(options.lessons)
    if not options.base_url:
        return site
    url = options.base_url.rstrip("/")
    if not re.fullmatch(r"https?://[^ ]+", url):
        raise UserError(problem(f"--base-url {options.base_url}", "not an address", expected="e.g. https://example.org/notes", next="write the whole address"))  # fmt: skip
    return site.model_copy(update={"base_url": url})


def find_lessons(options: argparse.Namespace) -> list[Lesson]:
    """The lessons of --lesson, --queue or --phase, in that order."""
    if options.phase:
        found = [
            lesson
            for lesson in load_lessons(options.lessons)
            if lesson.sort_key[0] == options.phase and lesson.spec.status == "published"
        ]
        if not found:
            raise UserError(problem(f"--phase {options.phase}", "no lesson of this phase", next="name another phase"))
        return found
    return [find_lesson(options, lesson_id) for lesson_id in options.queue or [options.lesson]]


def find_lesson(options: argparse.Namespace, lesson_id: str = "") -> Lesson:
    lesson_id = lesson_id or options.lesson
    lessons = {lesson.id: lesson for lesson in load_lessons(options.lessons)}
    if lesson_id not in lessons:
        raise UserError(problem(f"--lesson {lesson_id}", "no such lesson", expected=nearest(lesson_id, list(lessons)), next=f"name one of {shown(options.lessons)}"))  # fmt: skip
    return lessons[lesson_id]


def find_profile(lesson: Lesson, name: str | None) -> str:
    if name and name not in lesson.spec.profiles:
        raise UserError(problem(f"--profile {name}", f"lesson {lesson.id} has no such profile", expected=nearest(name, list(lesson.spec.profiles)), next="name one of these"))  # fmt: skip
    return name or lesson.spec.headline


def find_arm(lesson: Lesson, name: str) -> str:
    if name not in lesson.arms:
        raise UserError(problem(f"--arm {name}", f"lesson {lesson.id} has no such arm", expected=nearest(name, list(lesson.arms)), next="name one of these"))  # fmt: skip
    return name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
