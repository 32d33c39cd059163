"""Makes the Debian and the RPM packages of a wheel, for the Python of each distribution, on any Linux machine.

``python packaging/build.py deb --wheel dist/rltuned-….whl --out dist``, and the same with ``rpm``. No chroot and no
other interpreter is needed: uv (PyPI) chooses the locked wheels for another Python, and checks their hashes. What
results is the documented installation: a virtual environment in /opt/rltuned/venv with what the lock file says, the
units, the user, the directories, the configuration.

Two packages each: `rltuned`, from the first part of requirements.lock, and `rltuned-simulate`, from the second (Numba),
with the drop-in for the unit that lets it work.
"""

import argparse
import filecmp
import gzip
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from click.shell_completion import get_completion_class

from rltuned import __version__
from rltuned.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
VENV = "opt/rltuned/venv"
MAINTAINER = "rltuned <rltuned@localhost>"
REVISION = 1
"""Of the package; grows when the same version is packaged again."""
PYTHONS = {"deb12": "3.11", "deb13": "3.13", "deb14": "3.14", "ubuntu24.04": "3.12", "rpm": "3.12"}
"""Of each distribution. RHEL 8 (8.10), 9 (9.4) and 10 and their rebuilds all have a 3.12, hence one RPM for them."""
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
OLDEST_GLIBC = "2.28"
"""RHEL 8's."""
SUMMARIES = {
    "rltuned": "learned queue order for Slurm GPU clusters",
    "rltuned-simulate": "rltuned's simulator: start times and the gate",
}
START = f"""\
#!/{VENV}/bin/python
import sys

from rltuned.cli.main import main

if __name__ == "__main__":  # a worker process that is spawned imports this file
    sys.exit(main())
"""
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1577836800"))
"""Time of all files, so that the same sources make the same bytes; the default is hatchling's own."""


@dataclass(frozen=True)
class Staged:
    """The files of a package, below a directory that stands for /."""

    name: str
    tree: Path
    python: str

    @property
    def site(self) -> Path:
        """Where Python finds the modules."""
        return self.tree / VENV / f"lib/python{self.python}/site-packages"

    def files(self) -> Iterator[Path]:
        """Its files and symbolic links."""
        return (path for path in sorted(self.tree.rglob("*")) if path.is_symlink() or path.is_file())


def uv_install(site: Path, python: str, *requirements: str | Path) -> None:
    """Installs into a directory, for that Python on this kind of machine, wheels only."""
    beside = Path(sys.executable).parent
    uv = shutil.which("uv", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        sys.exit("packaging needs uv: `make packages` installs it (requirements-publish.lock)")
    words: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--target",
        site,
        "--python",
        sys.executable,
    ]
    words += ["--python-version", python, "--python-platform", f"{platform.machine()}-manylinux_2_28"]
    subprocess.run([*words, "--only-binary", ":all:", "--link-mode", "copy", *requirements], check=True)
    # Programs and manual pages of the dependencies: nobody calls them, and their first lines name this machine.
    for extra in ("bin", "share", ".lock"):
        path = site / extra
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # Where and when the wheel was built.
    for told in [*site.glob("*.dist-info/direct_url.json"), *site.glob("*.dist-info/uv_cache.json")]:
        told.unlink()
        record = told.with_name("RECORD")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if f"/{told.name}," not in line), encoding="utf-8")


def locked(folder: Path, until: str) -> Path:
    """A file with the lines of requirements.lock above the part that is named."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    path = folder / f"until-{until}.lock"
    path.write_text(text.partition(f"# {until}\n")[0], encoding="utf-8")
    return path


def put(tree: Path, target: str, source: Path | str, mode: int = 0o644) -> None:
    """Puts a file, or a text, at its place."""
    path = tree / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.read_bytes() if isinstance(source, Path) else source.encode())
    path.chmod(mode)


def put_compressed(tree: Path, target: str, text: str) -> None:
    """The same, compressed, without a time in it."""
    path = tree / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def stage(folder: Path, python: str, wheel: Path) -> Staged:
    """`rltuned`: as docs/installation.md says, at the places of a package."""
    staged = Staged("rltuned", folder / "rltuned", python)
    uv_install(staged.site, python, "--require-hashes", "-r", locked(folder, "simulate"))
    uv_install(staged.site, python, "--no-deps", wheel)
    tree, venv = staged.tree, staged.tree / VENV
    put(tree, f"{VENV}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    put(tree, f"{VENV}/bin/rltuned", START, 0o755)
    (venv / "bin/python").symlink_to(f"/usr/bin/python{python}")
    (venv / "bin/python3").symlink_to("python")
    put(tree, "opt/rltuned/package-steps", HERE / "steps", 0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/rltuned").symlink_to(f"/{VENV}/bin/rltuned")
    for unit in (path for path in (ROOT / "systemd").iterdir() if path.suffix in {".service", ".timer"}):
        put(tree, f"usr/lib/systemd/system/{unit.name}", unit)
    put(tree, "usr/lib/sysusers.d/rltuned.conf", ROOT / "systemd/rltuned.sysusers")
    put(tree, "usr/lib/tmpfiles.d/rltuned.conf", ROOT / "systemd/rltuned.tmpfiles")
    put(tree, "etc/rltuned/config.toml", ROOT / "deploy/config.toml")
    put_compressed(tree, "usr/share/man/man1/rltuned.1.gz", (ROOT / "docs/rltuned.1").read_text(encoding="utf-8"))
    for shell, target in (
        ("bash", "usr/share/bash-completion/completions/rltuned"),
        ("zsh", "usr/share/zsh/vendor-completions/_rltuned"),
        ("fish", "usr/share/fish/vendor_completions.d/rltuned.fish"),
    ):
        made = get_completion_class(shell)
        assert made is not None
        put(tree, target, made(cli, {}, "rltuned", "_RLTUNED_COMPLETE").source())
    for page in (ROOT / "docs").glob("*.md"):
        put(tree, f"usr/share/doc/rltuned/{page.name}", page)
    for examples in ("prometheus", "grafana"):
        for example in (ROOT / "deploy" / examples).iterdir():
            put(tree, f"usr/share/doc/rltuned/{examples}/{example.name}", example)
    document(staged)
    return staged


def stage_simulate(folder: Path, base: Staged) -> Staged:
    """`rltuned-simulate`: what the simulator needs beside the daemon, and the drop-in for it."""
    staged = Staged("rltuned-simulate", folder / "rltuned-simulate", base.python)
    uv_install(staged.site, base.python, "--require-hashes", "-r", locked(folder, "dev"))
    for path in list(staged.files()):
        there = base.tree / path.relative_to(staged.tree)
        if there.exists():
            # RECORD names the programs that were left out of both.
            if path.name not in {"RECORD", "REQUESTED"} and not filecmp.cmp(path, there, shallow=False):
                sys.exit(f"{path}: the parts of the lock file do not agree")
            path.unlink()
    for path in sorted(staged.site.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    drop_in = "usr/lib/systemd/system/rltuned.service.d/forecast.conf"
    put(staged.tree, drop_in, ROOT / "systemd/rltuned-forecast.conf")
    document(staged)
    return staged


def document(staged: Staged) -> None:
    """What each package says of its licence and its changes."""
    doc = f"usr/share/doc/{staged.name}"
    licence = (
        "rltuned is free software under the GNU General Public License, version 3 or later.\n"
        "Debian has its text in /usr/share/common-licenses/GPL-3; it is also beside the bundled package itself,\n"
        f"in /{VENV}/lib/python{staged.python}/site-packages/rltuned-{__version__}.dist-info/licenses.\n\n"
        "The packages from PyPI that are bundled have licences of their own, all compatible with it. The texts are in\n"
        f"/{VENV}/lib/python{staged.python}/site-packages/*.dist-info.\n"
    )
    put(staged.tree, f"{doc}/copyright", licence)
    put(staged.tree, f"{doc}/CHANGELOG.md", ROOT / "CHANGELOG.md")


def settle(tree: Path) -> None:
    """Modes and times that do not depend on who builds, and when."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def make_deb(staged: Staged, distribution: str, out: Path) -> Path:
    """Builds the Debian package of a tree."""
    version, machine = f"{__version__}-{REVISION}+{distribution}", DEBIAN_MACHINES[platform.machine()]
    size = sum(path.lstat().st_size for path in staged.files()) // 1024
    needs = f"python{staged.python}, libc6 (>= {OLDEST_GLIBC}), libgcc-s1, libstdc++6, systemd"
    if staged.name != "rltuned":
        needs = f"rltuned (= {version})"
    control = staged.tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: {staged.name}\nVersion: {version}\nArchitecture: {machine}\nSection: admin\nPriority: optional\n"
        # Slurm may be the site's own: it is not pulled in.
        f"Maintainer: {MAINTAINER}\nDepends: {needs}\nSuggests: slurm-client | slurm-smd-client\n"
        f"Installed-Size: {size}\nDescription: {SUMMARIES[staged.name]}\n{description()}\n",
        encoding="utf-8",
    )
    entry = f"{staged.name} ({version}) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
    signed = f" -- {MAINTAINER}  {format_datetime(datetime.fromtimestamp(EPOCH, UTC))}\n"
    put_compressed(staged.tree, f"usr/share/doc/{staged.name}/changelog.Debian.gz", entry + signed)
    if staged.name == "rltuned":
        (control / "conffiles").write_text("/etc/rltuned/config.toml\n", encoding="utf-8")
    for script in (HERE / ("deb" if staged.name == "rltuned" else "deb-simulate")).iterdir():
        shutil.copy(script, control)
    settle(staged.tree)
    path = out / f"{staged.name}_{version}_{machine}.deb"
    words: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z6", "--build", staged.tree, path]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})
    shutil.rmtree(control)
    return path


def make_rpm(staged: Staged, out: Path) -> Path:
    """Builds the RPM package of a tree."""
    settle(staged.tree)
    with tempfile.TemporaryDirectory() as folder:
        top, files = Path(folder), Path(folder) / "files"
        # Directories of our own are named, so that a removal takes them away.
        own = [f"%dir /{VENV.partition('/')[0]}/rltuned", "%dir /etc/rltuned"] if staged.name == "rltuned" else []
        for path in staged.files():
            there = f"/{path.relative_to(staged.tree)}"
            own.append(f'{"%config(noreplace) " if there.startswith("/etc") else ""}"{there}"')
        files.write_text("%defattr(-,root,root,-)\n" + "\n".join(own) + "\n", encoding="utf-8")
        given = {
            "_topdir": top,
            "name_": staged.name,
            "version_": __version__,
            "arch_": platform.machine(),
            "python_": staged.python,
            "summary_": SUMMARIES[staged.name],
            "tree": staged.tree,
            "files_": files,
        }
        defines = [word for name, value in given.items() for word in ("--define", f"{name} {value}")]
        words = ["rpmbuild", "--quiet", "-bb", "--target", f"{platform.machine()}-linux", *defines]
        subprocess.run(
            [*words, HERE / "rpm/rltuned.spec"], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        )
        (made,) = top.glob("RPMS/*/*.rpm")
        return Path(shutil.copy(made, out))


def description() -> str:
    """One sentence, from pyproject.toml, in lines as a Debian package has them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return textwrap.indent(textwrap.fill(tomllib.load(file)["project"]["description"], 75), " ")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["deb", "rpm"])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    names = [name for name in PYTHONS if name != "rpm"]
    parser.add_argument("--for", dest="distributions", action="append", choices=names, help="default: all")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for distribution in ["rpm"] if given.kind == "rpm" else given.distributions or names:
        with tempfile.TemporaryDirectory(prefix="rltuned-package-") as folder:
            base = stage(Path(folder), PYTHONS[distribution], given.wheel.resolve())
            for staged in (base, stage_simulate(Path(folder), base)):
                made = make_rpm(staged, given.out) if given.kind == "rpm" else make_deb(staged, distribution, given.out)
                print(made)


if __name__ == "__main__":
    main()
