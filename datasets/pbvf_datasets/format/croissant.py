"""``croissant.json``: files and arrays of a dataset in the words of MLCommons Croissant 1.0.

It lists the data file and Minari's metadata with size and SHA-256, so that Croissant's own tools
check what they fetch. It does not list the card, which people may edit, nor the manifest,
which vouches for this file and so cannot be in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.card import citation, clean
from pbvf_datasets.format.names import check_dataset_id
from pbvf_datasets.format.schema import (
    BLOB,
    DATA_FILE,
    FIELDS,
    METADATA_FILE,
    dataset_version,
)
from pbvf_offline.errors import counted

_CONTEXT: Final = Path(__file__).with_name("croissant_context.json")
"""The one context that Croissant 1.0 prescribes."""

_ROWS: Final = {"T": "steps", "T+1": "steps + 1", "S": "segments"}
_MEANING: Final = {
    "observations": "what the policy saw, raw; the final observation included",
    "actions": "what the environment received",
    "rewards": "as the environment gave them",
    "terminations": "the task ended at this step",
    "truncations": "a time limit or a step budget ended the episode at this step",
    "infos/theta": "parameters of the policies that acted, in order",
    "infos/segment": "the row of infos/theta in force at each step; the last entry repeats the "
    "one before",
    "infos/obs_mean": "the network sees (observation - obs_mean) / obs_std",
    "infos/obs_std": "the network sees (observation - obs_mean) / obs_std",
    "infos/reward_survive": "survival bonus inside the reward that led to each observation",
    "infos/pre_action": "actions before squashing",
    BLOB: "JSON: format version, policy architecture, and whether a step budget cut the episode",
}


def croissant_bytes(
    dataset_id: str,
    provenance: Mapping[str, Any],
    *,
    files: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, tuple[str, tuple[int, ...]]],
) -> bytes:
    """Return the bytes of ``croissant.json``; equal input gives equal bytes.

    Args:
        dataset_id: ``namespace/name-vN``.
        provenance: As in the manifest.
        files: ``size`` and ``sha256`` of the data file and of Minari's metadata, by name.
        arrays: dtype and shape of one row of each array that episodes have, by their
            names in :data:`pbvf_datasets.format.schema.FIELDS`.
    """
    environment = provenance["environment"]
    stats = provenance["stats"]
    name = clean(environment["id"]) if environment else "an unnamed environment"
    version = dataset_version(provenance)
    document: dict[str, Any] = {
        "@context": json.loads(_CONTEXT.read_text("utf-8")),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": dataset_id,
        "description": f"{counted(stats['episodes'], 'episode')} "
        f"({counted(stats['steps'], 'step')}) from {name}, "
        "each step tagged with the parameters of the policy that acted; "
        f"{counted(stats['policies'], 'distinct policy')}. "
        f"Format version {version} of {clean(provenance['tool'])}.",
        "keywords": [
            "reinforcement learning",
            "offline reinforcement learning",
            "parameter-based value functions",
            "Minari",
        ],
        "version": f"{check_dataset_id(dataset_id)[2]}.0.0",
        "citeAs": citation(dataset_id, provenance, files[DATA_FILE]["sha256"]),
        "distribution": [
            _file(DATA_FILE, files, "application/x-hdf5", "All episodes, a group each."),
            _file(METADATA_FILE, files, "application/json", "Spaces and counts, for Minari."),
        ],
        "recordSet": [_counts(), _arrays(arrays)],
    }
    if provenance["license"] is not None:
        document["license"] = clean(provenance["license"])
    if provenance["authors"]:
        document["creator"] = [
            {"@type": "sc:Person", "name": clean(author)} for author in provenance["authors"]
        ]
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def _file(
    name: str, files: Mapping[str, Mapping[str, Any]], encoding: str, description: str
) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "description": description,
        "contentUrl": name,
        "contentSize": f"{files[name]['size']} B",
        "encodingFormat": encoding,
        "sha256": files[name]["sha256"],
    }


def _counts() -> dict[str, Any]:
    """Return the record set that Croissant's tools can read out of the metadata."""

    def field(name: str, description: str) -> dict[str, Any]:
        return {
            "@type": "cr:Field",
            "@id": f"counts/{name}",
            "name": name,
            "description": description,
            "dataType": "sc:Integer",
            "source": {
                "fileObject": {"@id": METADATA_FILE},
                "extract": {"jsonPath": f"$.{name}"},
            },
        }

    return {
        "@type": "cr:RecordSet",
        "@id": "counts",
        "name": "counts",
        "description": "How much there is, from Minari's metadata.",
        "field": [
            field("total_episodes", "Number of episodes."),
            field("total_steps", "Number of steps in all episodes."),
        ],
    }


def _arrays(arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """Return the arrays of an episode as records: Croissant 1.0 has no way to reach into HDF5."""
    columns = {
        "name": "Path inside the group episode_0, episode_1, … of the data file.",
        "dtype": "NumPy's name of its type.",
        "shape": "Its axes.",
        "description": "What it holds.",
    }
    rows = []
    for field in FIELDS:
        if field.name in arrays:
            dtype, row = arrays[field.name]
            shape = ", ".join([_ROWS[field.rows], *map(str, row)])
            rows.append([field.name, dtype, f"({shape})", _MEANING[field.name]])
    rows.append([BLOB, "uint8", "(bytes)", _MEANING[BLOB]])
    return {
        "@type": "cr:RecordSet",
        "@id": "arrays",
        "name": "arrays",
        "description": "The arrays that every episode has.",
        "key": {"@id": "arrays/name"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"arrays/{name}",
                "name": name,
                "description": description,
                "dataType": "sc:Text",
            }
            for name, description in columns.items()
        ],
        "data": [
            {f"arrays/{name}": cell for name, cell in zip(columns, row, strict=True)}
            for row in rows
        ],
    }
