"""Add a test run to the results file, bound to what was tested."""

from pathlib import Path

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.status.matrix import digest_of
from mindspeed_overlay.status.results import (
    Outcome,
    count_tests,
    describe_results,
    read_results,
)


def record_tests(survey: Survey, report: Path, results: Path) -> int:
    """Record the tests of a JUnit report; how many (overlay, release) pairs it told of.

    Later runs replace earlier ones of the same pair. To be run on the contents that were tested:
    their digest is taken now.
    """
    overlays = survey.overlays
    tested = dict(read_results(results))
    counts = count_tests(report, [o.id for o in overlays.overlays])
    known = set(survey.order)
    for (overlay, tag), (passed, failed) in counts.items():
        if tag in known and overlays.get(overlay).serves(tag, survey.order):
            release = survey.pins.get(tag)
            selection = Selection(features=(overlay,))
            plan = make_plan(overlays, survey.pins, release, selection=selection, tree=survey.tree)
            tested[overlay, tag] = Outcome(digest_of(plan), passed, failed)
    results.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(results.absolute(), describe_results(tested))
    return len(counts)
