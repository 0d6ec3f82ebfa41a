"""Where a measurement comes from: the commit is that of the code, whatever earlier measurements have written beside it."""

import subprocess

from metaprior.benchmarks.origin import commit_of


def git(folder, *words):
    name = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_code_that_has_changed_marks_the_commit_and_results_do_not(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "results").mkdir()
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "results" / "study.json").write_text("{}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    last = git(tmp_path, "rev-parse", "HEAD")[:10]
    assert commit_of(tmp_path) == last
    (tmp_path / "results" / "study.json").write_text("[]")
    (tmp_path / "notes.txt").write_text("not git's")
    assert commit_of(tmp_path) == last
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path) == f"{last}-dirty"
    git(tmp_path, "add", "code.py")
    assert commit_of(tmp_path) == f"{last}-dirty"


def test_where_there_is_no_repository_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) == "unknown"
