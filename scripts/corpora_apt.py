"""Getting public Debian material by apt's own means, leaving the system as it is.

Everything lies in one work folder: package lists, apt's caches, the downloaded
packages and their unpacked files. Nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from corpora_sources import CorpusError

# The hooks of the system's apt (some delete archives) are none of our business.
_CONFIG = """\
Dir::State::Lists "{work}/lists";
Dir::Cache "{work}/cache";
APT::Sandbox::User "root";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


class Apt:
    """apt with its lists and caches in a folder of our own.

    Args:
      work_dir: where everything is kept, to be reused by later runs.
    """

    def __init__(self, work_dir: Path) -> None:
        missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
        if missing:
            raise CorpusError(
                f"{missing[0]} isn't on this machine: run this on Debian, or name the files "
                "with --packages_file, --translation_en, --translation_de, --help_en_dir, "
                "--help_de_dir and --ding_file."
            )
        self._work = work_dir.resolve()
        for folder in ("lists/partial", "cache/archives/partial", "packages"):
            (self._work / folder).mkdir(parents=True, exist_ok=True)
        self._config = self._work / "apt.conf"
        self._config.write_text(_CONFIG.format(work=self._work), encoding="utf-8")

    def _run(self, arguments: Sequence[str], task: str, cwd: Path | None = None) -> str:
        """Runs apt-get; `task` names what failed in words."""
        command = ["apt-get", "-c", str(self._config), "-o", "Acquire::Languages=en,de"]
        result = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, cwd=cwd
        )
        if result.returncode:
            errors = [line[2:].strip() for line in result.stderr.split("\n") if line[:2] == "E:"]
            raise CorpusError(f"apt can't {task}: {errors[0] if errors else 'no reason given'}")
        return result.stdout

    def indices(self) -> dict[str, list[Path]]:
        """Gets the indices of Debian's main component: packages, and descriptions.

        Returns:
          Paths under the keys "packages", "en" and "de".
        """
        if not all(self._find_indices().values()):
            self._run(["update"], "update its package lists")
        found = self._find_indices()
        for kind, paths in found.items():
            if not paths:
                raise CorpusError(f"apt's sources have no Debian index of kind '{kind}'.")
        return found

    def _find_indices(self) -> dict[str, list[Path]]:
        layout = "$(CREATED_BY)\t$(LANGUAGE)\t$(FILENAME)"
        query = ["indextargets", "Origin: Debian", "Component: main", "--format", layout]
        found: dict[str, list[Path]] = {"packages": [], "en": [], "de": []}
        for line in self._run(query, "list its indices").splitlines():
            created_by, language, name = line.split("\t")
            key = "packages" if created_by == "Packages" else language
            if key in found and Path(name).exists():
                found[key].append(Path(name))
        return found

    def unpack(self, package: str) -> Path:
        """Downloads a package and unpacks it, without installing it.

        Returns:
          The folder that holds its files.
        """
        folder = self._work / "packages" / package
        if folder.exists():
            return folder
        archives = self._work / "cache" / "archives"
        pattern = f"{package}_*.deb"
        if not list(archives.glob(pattern)):
            self._run(["download", package], f"download the package {package}", cwd=archives)
        archive = max(archives.glob(pattern))
        partial = folder.with_name(f"{package}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        result = subprocess.run(
            ["dpkg-deb", "-x", str(archive), str(partial)], capture_output=True, check=False
        )
        if result.returncode:
            archive.unlink()
            raise CorpusError(f"dpkg-deb can't unpack {archive.name}; run again to get it anew.")
        partial.rename(folder)
        return folder
