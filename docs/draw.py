"""Draws docs/pictures/*.svg: ``python docs/draw.py``. Real calls on the CPU compute the numbers in the pictures."""

from __future__ import annotations

from pathlib import Path

from drawing import census, flows, verdicts

FOLDER = Path(__file__).resolve().parent / "pictures"
PICTURES = {
    "census.svg": census.picture,
    "verdicts.svg": verdicts.picture,
    "evidence.svg": flows.evidence,
    "identity.svg": flows.identity,
}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in PICTURES.items():
        (FOLDER / name).write_text(picture())
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
