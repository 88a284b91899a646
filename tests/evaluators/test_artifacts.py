"""What answers may have an evaluator open: nothing but regular files below the directory that it was given."""

import json
import os
import socket
import threading

import pytest

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.artifacts import ArtifactDirectory

SECRET = "the secret"


@pytest.fixture
def place(tmp_path):
    """A directory of an agent, beside a file that is none of its business."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def problem(place, name, **parameters):
    """What is said of one artifact that the answer names."""
    feedback = score(get_evaluator("agent_sanity", directory=str(place), **parameters), outputs={"artifacts": [name]})[
        0
    ]
    assert feedback.outcome == "score", feedback.error
    return feedback.metadata["problems"].get(name, [])


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "/dev/zero", "../secret.txt", "../../../etc/passwd", "/", "..", "a/../.."]
)
def test_what_lies_outside_is_not_opened(place, name):
    assert problem(place, name) == ["cannot be read: it is outside of the directory"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret.txt", "..", "/dev/zero"])
def test_links_that_lead_outside_are_not_followed(place, target):
    (place / "link").symlink_to(target)
    assert problem(place, "link") == ["cannot be read: it links to a place outside of the directory"]


def test_a_folder_that_is_a_link_leads_outside_too(place):
    (place / "link").symlink_to(place.parent)
    assert problem(place, "link/secret.txt") == ["cannot be read: it links to a place outside of the directory"]


def test_a_neighbour_whose_name_begins_alike_is_outside(place):
    (place.parent / "work2").mkdir()
    (place.parent / "work2" / "a.txt").write_text(SECRET)
    assert problem(place, "../work2/a.txt") == ["cannot be read: it is outside of the directory"]


def test_links_that_stay_inside_are_followed(place):
    (place / "a.txt").write_text("sound")
    (place / "link").symlink_to("a.txt")
    assert problem(place, "link") == problem(place, str(place / "a.txt")) == problem(place, "./a.txt") == []


def test_a_directory_may_itself_be_a_link(place):
    (place / "a.txt").write_text("sound")
    (place.parent / "latest").symlink_to(place)
    assert problem(place.parent / "latest", str(place.parent / "latest" / "a.txt")) == []


def bound(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)


@pytest.mark.parametrize("make", [os.mkfifo, bound])
def test_what_is_no_regular_file_is_not_read(place, make, monkeypatch):
    monkeypatch.chdir(place)
    make("pipe")
    assert "regular file" in problem(place, "pipe")[0] or "No such device" in problem(place, "pipe")[0]


@pytest.mark.skipif(not os.access("/dev/pts/ptmx", os.R_OK), reason="this folder of devices alone cannot be read")
def test_devices_are_not_read():
    assert problem("/dev/pts", "ptmx") == ["cannot be read: it is not a regular file"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a\0b", "cannot be read: a file name cannot contain a NUL character"),
        ("missing", "is missing"),
        ("a.txt/b", "cannot be read: Not a directory"),
        ("n" * 1000, "cannot be read: File name too long"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_opened_says_why(place, name, told):
    (place / "a.txt").write_text("sound")
    (place / "loop").symlink_to("loop")
    assert problem(place, name) == [told]


def test_a_name_that_no_encoding_writes_is_refused(place):
    with pytest.raises(PermissionError, match="it is not a valid file name"):
        ArtifactDirectory(str(place), most=10, left=10).read("\ud800")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_so(place):
    (place / "a.txt").write_text("sound")
    (place / "a.txt").chmod(0)
    assert problem(place, "a.txt") == ["cannot be read: Permission denied"]


def test_a_name_of_megabytes_is_refused_in_few_words():
    feedback = score(get_evaluator("agent_sanity"), outputs={"artifacts": ["n" * 10_000_000]})[0]
    assert "an artifact's path has 10,000,000 characters, more than 4,096" in feedback.error
    assert len(feedback.error) < 500


def test_no_file_is_opened_without_a_directory(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "a.json").write_text("[1]")
    feedback = score(get_evaluator("agent_sanity"), outputs={"artifacts": ["a.json", "/etc/passwd"]})[0]
    assert feedback.outcome == "skip"
    assert "names files ('a.json', '/etc/passwd')" in feedback.comment
    assert "directory=…" in feedback.comment


def test_what_is_expected_but_not_handed_over_is_missing(place, monkeypatch):
    monkeypatch.chdir(place)
    (place / "a.json").write_text("[1]")
    feedback = score(get_evaluator("agent_sanity", expectations={"a.json": {}}), outputs="done")[0]
    assert (feedback.score, feedback.comment) == (
        0.0,
        "a.json: cannot be read: the answer does not contain it, and no directory is given",
    )


def test_more_bytes_than_may_be_read_are_an_error_that_names_the_way_out(place):
    for name in ("a.txt", "b.txt"):
        (place / name).write_bytes(b"x" * 600)
    feedback = score(get_evaluator("agent_sanity", directory=str(place), max_bytes=1000), outputs="done")[0]
    assert "artifact 'b.txt' has 600 bytes" in feedback.error
    assert "give a larger max_bytes" in feedback.error


def test_a_file_of_terabytes_is_not_read(place):
    with (place / "a.txt").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert (
        "1,099,511,627,776 bytes" in score(get_evaluator("agent_sanity", directory=str(place)), outputs="done")[0].error
    )


def test_content_that_was_handed_over_is_bounded_too():
    outputs = {"artifacts": {"a.txt": "x" * 2000}}
    assert "has 2,000 bytes" in score(get_evaluator("agent_sanity", max_bytes=1000), outputs=outputs)[0].error


def test_more_artifacts_than_may_be_looked_at_are_an_error(place):
    judge = get_evaluator("agent_sanity", directory=str(place), max_artifacts=3)
    named = score(judge, outputs=[f"{n}.txt" for n in range(4)])[0]
    for n in range(4):
        (place / str(n)).mkdir()
    listed = score(judge, outputs="done")[0]
    assert "names 4 artifacts: give a larger max_artifacts" in named.error
    assert "holds more than 3 entries: give a larger max_artifacts" in listed.error


def test_a_file_that_grows_is_read_as_it_was(place):
    over = threading.Event()

    def grow():
        with (place / "log.txt").open("ab", buffering=0) as log:
            while not over.is_set():
                log.write(b"x" * 1000)

    (place / "log.txt").write_text("x")
    writer = threading.Thread(target=grow)
    writer.start()
    try:
        assert problem(place, "log.txt", max_bytes=10**9) == []
    finally:
        over.set()
        writer.join()


@pytest.mark.process
def test_nothing_outside_is_read_while_files_become_links(place):
    over = threading.Event()

    def swap():
        while not over.is_set():
            (place / "new").symlink_to("../secret.txt")
            os.replace(place / "new", place / "a.txt")
            (place / "new").write_text("inside")
            os.replace(place / "new", place / "a.txt")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        told = [problem(place, "a.txt", expectations={"a.txt": {"contains": [SECRET]}}) for _ in range(200)]
    finally:
        over.set()
        swapper.join()
    assert all(told)


def test_a_directory_that_is_not_there_is_an_error_and_no_zero(place):
    feedback = score(get_evaluator("agent_sanity", directory=str(place / "none")), outputs="done")[0]
    assert "none' cannot be listed: No such file or directory" in feedback.error


def test_contents_by_name_are_artifacts():
    outputs = {"artifacts": {"a.json": {"x": 1}, "b.json": "[1", "c.txt": "words"}}
    feedback = score(get_evaluator("agent_sanity"), outputs=outputs)[0]
    assert feedback.score == pytest.approx(2 / 3)
    assert list(feedback.metadata["problems"]) == ["b.json"]


@pytest.mark.parametrize("one", ["a.txt", {"path": "a.txt"}, {"path": "a.txt", "content": "sound"}])
def test_one_artifact_needs_no_list(place, one):
    (place / "a.txt").write_text("sound")
    feedback = score(get_evaluator("agent_sanity", directory=str(place)), outputs={"artifacts": one})[0]
    assert (feedback.score, feedback.metadata["artifacts"]) == (1.0, 1)


def test_an_artifact_named_in_two_ways_is_one(place):
    (place / "a.txt").write_text("")
    judge = get_evaluator("agent_sanity", directory=str(place), expectations={"./a.txt": {"min_bytes": 1}})
    assert score(judge, outputs=["./a.txt"])[0].metadata["artifacts"] == 1


def test_lines_of_json_end_at_newlines_alone():
    outputs = {"artifacts": {"a.jsonl": json.dumps({"a": "one\u2028two"}, ensure_ascii=False) + "\n"}}
    assert score(get_evaluator("agent_sanity"), outputs=outputs)[0].score == 1.0


def test_of_millions_of_problems_the_first_are_told():
    outputs = {"artifacts": {"a.jsonl": "\n".join(map(str, range(1000)))}}
    judge = get_evaluator("agent_sanity", expectations={"a.jsonl": {"fields": {"x": 1}}})
    assert len(score(judge, outputs=outputs)[0].metadata["problems"]["a.jsonl"]) == 20


@loop_over(
    ("bad", "words"),
    [
        ({"directory": ""}, "directory is a path, not ''"),
        ({"max_bytes": 0}, "max_bytes is 1 or more, not 0"),
        ({"max_artifacts": -1}, "max_artifacts is 1 or more, not -1"),
        ({"expectations": {"a": 3}}, "the expectations for 'a' must be a dict"),
        ({"expectations": {"a": {"min_bytes": "1"}}}, "'min_bytes' for 'a' must be a whole number, 0 or more, not '1'"),
        ({"expectations": {"a": {"contains": "abc"}}}, "'contains' for 'a' must be a list of texts, not 'abc'"),
        ({"expectations": {"a": {"kind": "link"}}}, "'kind' for 'a' must be 'file' or 'dir', not 'link'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        get_evaluator("agent_sanity", **bad)
