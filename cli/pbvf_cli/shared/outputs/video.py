"""Filming one episode with the environment's own renderer."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from pbvf_offline.envs.make import Env, close_env, env_name, make_env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    PbvfError,
    ResourceError,
    UsageError,
    exception_text,
)
from pbvf_offline.exchange.output import refuse_foreign
from pbvf_offline.foreign import failure, place_of, raised_by_author, stops
from pbvf_offline.io.durable import check_above, write_error
from pbvf_offline.io.reading import open_regular
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.loop import run_episode
from pbvf_offline.rollout.schedules import GivenSchedule

_RENDER_MODE = "rgb_array"
_GIF_END = b";"
_ENDS = {
    ".mp4": b"\0\0\0\x14freepbvf-offline",  # a box of free space
    ".gif": b"!\xfe\x0cpbvf-offline\0" + _GIF_END,  # a comment
}
"""How a video ends that was made here; players skip that."""
_DEFAULT_FPS = 30
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""Exceptions that say more of the code that raised them than of the machine."""


def check_video(path: Path, *, overwrite: bool) -> None:
    """Check what can be checked of a video before anything runs.

    Raises:
        UsageError: Its name has another ending, or what writes it is not installed.
        ConflictError: It exists, and is not to be replaced or is no video made here.
    """
    if path.suffix.lower() not in _ENDS:
        raise UsageError(
            f"videos end in {' or '.join(_ENDS)}", where=path, remedy="choose such a name"
        )
    check_above(path)
    needed = ["imageio"] + (["imageio_ffmpeg"] if path.suffix.lower() == ".mp4" else [])
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{missing[0]} is not installed, which writes videos",
            where="--video",
            remedy="pip install 'pbvf-offline[video]'",
        )
    refuse_foreign(path, _is_own, "video made by pbvf-offline")
    if path.exists() and not overwrite:
        raise ConflictError(
            "exists", where=path, remedy="choose another name, or replace it with --overwrite"
        )


def _is_own(path: Path) -> bool:
    with contextlib.suppress(PbvfError, OSError), open_regular(path) as file:
        file.seek(-max(map(len, _ENDS.values())), os.SEEK_END)
        return file.read().endswith(tuple(_ENDS.values()))
    return False


class _Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Hands the frames of an environment on as they are rendered.

    Attributes:
        frames: How many there were.
        every: Steps from one to the next.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        writer: Any,
        progress: Callable[[int, int | None], None],
        most: int | None,
    ) -> None:
        super().__init__(env)
        limit = time_limit(env)
        self.frames, self._seen = 0, 0
        self.every = 1 if limit is None or most is None else -(-(limit + 1) // most)
        self._most = None if limit is None else limit // self.every + 1
        self._writer, self._progress = writer, progress

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(**kwargs)
        self._shoot()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self._shoot()
        return answer

    def _shoot(self) -> None:
        self._seen += 1
        if (self._seen - 1) % self.every:
            return
        try:
            frame = self.env.render()
        except BaseException as error:
            if stops(error):
                raise
            raise _cannot_render(error, env_name(self.env)) from error
        image = np.asarray(frame)
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise UsageError(
                f"its image has shape {image.shape} and dtype {image.dtype}; (height, width, 3) "
                "and uint8 are expected",
                where=env_name(self.env),
                remedy="mend its render()",
            )
        try:
            self._writer.append_data(image)
        except Exception as error:
            raise _cannot_write(error) from error
        self.frames += 1
        self._progress(self.frames, self._most)


def record_video(
    config: EnvConfig,
    policies: Policies,
    path: Path,
    *,
    seed: int,
    episodes: int,
    progress: Callable[[int, int | None], None],
    most: int | None = None,
) -> tuple[int, int]:
    """Write the first episode that an evaluation runs of the first policy, whole or not at all.

    ``progress`` is told of the frames rendered, and of how many there are at most. With ``most``
    steps are left out between frames, so that no episode within its time limit has more of them:
    where MuJoCo draws on a CPU, a frame takes a hundred times as long as a step.

    Returns:
        The number of frames, and the steps from one to the next.

    Raises:
        UsageError: The environment offers no images.
        ResourceError: The machine cannot render, or the file cannot be written.
    """
    plain = make_env(config)
    modes, fps = plain.metadata.get("render_modes") or [], plain.metadata.get("render_fps")
    close_env(plain)
    if _RENDER_MODE not in modes:
        raise UsageError(
            f"the environment has no render mode {_RENDER_MODE}, so it cannot be filmed",
            where=config.name,
        )
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _headless(),
            _rendering(config) as env,
            _writer(temporary, fps or _DEFAULT_FPS) as writer,
        ):
            camera = _Camera(env, writer, progress, most)
            run_episode(camera, GivenSchedule(policies, seed, repeat=episodes), 0)
        _sign(temporary)
        temporary.replace(path)
    except OSError as error:
        raise write_error(error, path) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return camera.frames, camera.every


def _sign(path: Path) -> None:
    """Have a video say who made it, where players skip it."""
    with path.open("r+b") as file:
        if path.suffix.lower() == ".gif":
            file.seek(-len(_GIF_END), os.SEEK_END)
        else:
            file.seek(0, os.SEEK_END)
        file.write(_ENDS[path.suffix.lower()])


@contextlib.contextmanager
def _headless() -> Iterator[None]:
    """Have MuJoCo draw through EGL where there is no screen and nothing else was asked for."""
    screens = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")
    chosen = sys.platform == "linux" and not any(name in os.environ for name in screens)
    if chosen:
        os.environ["MUJOCO_GL"] = "egl"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a failed attempt ends in one error, not in remarks
            yield
    finally:
        if chosen:
            del os.environ["MUJOCO_GL"]


@contextlib.contextmanager
def _rendering(config: EnvConfig) -> Iterator[Env]:
    try:
        env = make_env(config, render_mode=_RENDER_MODE)
    except PbvfError:
        raise
    except Exception as error:
        raise _cannot_render(error, config.name) from error
    try:
        yield env
    finally:
        with contextlib.suppress(Exception):  # a renderer that failed may fail to close too
            env.close()


def _writer(path: Path, fps: float) -> Any:
    import imageio.v2 as imageio

    if path.suffix.lower() == ".gif":
        return imageio.get_writer(path, mode="I", duration=1000 / fps, loop=0)
    # Two is what H.264 needs; the default of 16 would rescale most images.
    return imageio.get_writer(path, fps=fps, macro_block_size=2)


def _cannot_render(error: BaseException, name: str) -> PbvfError:
    """Return whose fault it is that there is no image: the environment's code, or the machine."""
    text = exception_text(error)
    if isinstance(error, _MISTAKES) and raised_by_author(error):
        return failure(
            error,
            f"the environment raised {text} while it was rendered",
            where=name,
            remedy="mend its render()",
        )
    place = place_of(error)
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        remedy = "install what it lacks"
    elif "mujoco" in sys.modules:
        remedy = "set MUJOCO_GL=egl (or osmesa) where there is no screen"
    else:
        remedy = "see whether it needs a screen, or a library that is not here"
    return ResourceError(
        f"this machine cannot render {name}: {text}" + (f", at {place}" if place else ""),
        where="--video",
        remedy=remedy,
    )


def _cannot_write(error: Exception) -> ResourceError:
    return ResourceError(
        f"the video cannot be written: {exception_text(error)}",
        where="--video",
        remedy="choose another file or ending",
    )
