"""The commands of docs/how-to/tls.md create files; with these files the extender answers only the scheduler."""

import re
import shutil
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.integration.cli.tas import Running, Tas
from tests.integration.servers import eventually

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "tls.md").read_text()
(CONSOLE,) = re.findall(r"^```console\n(\$ tas run all .*?)^```", PAGE, re.DOTALL | re.MULTILINE)


async def create(tas: Tas, folder: Path) -> Path:
    """The files of the first command of the page."""
    done = await tas("certs", "init", str(folder))
    assert done.code == 0, done.err
    assert done.out.replace(str(folder), "certs") in PAGE
    return folder


@pytest.fixture
async def files(tas: Tas, tmp_path: Path) -> Path:
    return await create(tas, tmp_path / "certificates")


def flags(files: Path, folder: Path) -> list[str]:
    """The flags of the page's `tas run`, with free ports and paths of this test."""
    command = CONSOLE.partition("tas run all ")[2].partition("\n$ ")[0].replace("\\\n", " ").split()
    shown = dict(zip(command[::2], command[1::2], strict=True))
    assert {"--cert", "--key", "--cacert", "--client-names", "--listen"} <= set(shown)
    policies = folder / "policies"
    policies.mkdir()
    ours = {"--policies": str(policies), "--listen": "127.0.0.1:0", "--health-listen": "127.0.0.1:0"}
    paths = {name: str(files / Path(shown[name]).name) for name in ("--cert", "--key", "--cacert")}
    return [word for pair in (shown | ours | paths).items() for word in pair]


def trusting(files: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files / "ca.crt")
    if client:
        context.load_cert_chain(files / f"{client}.crt", files / f"{client}.key")
    return context


async def version(running: Running, context: ssl.SSLContext) -> Mapping[str, str]:
    url = (await running.logged("extender_listening"))["url"].removesuffix("/scheduler")
    assert url.startswith("https://")
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{url}/version") as response:
        assert response.status == 200
        answer: Mapping[str, str] = await response.json()
        return answer


async def test_with_the_files_of_the_page_the_extender_answers_only_the_scheduler(
    tas: Tas, files: Path, tmp_path: Path
) -> None:
    async with tas.running("run", "all", *flags(files, tmp_path)) as running:
        await running.ready()
        assert set(await version(running, trusting(files, "client"))) == {"version", "python"}
        for refused in (trusting(files), trusting(files, "tls")):
            with pytest.raises(aiohttp.ClientError):
                await version(running, refused)

        for reason in ("no_certificate", "wrong_purpose"):
            await running.logged("client_refused", reason=reason)
        status, metrics = await running.health("/metrics")
        assert status == 200, "the health port has no TLS"
        assert re.search(r'tas_tls_refused_total\{reason="no_certificate"\} [1-9]', metrics)
        assert (await running.health("/version"))[0] == 200
        assert await running.end() == 0


async def test_a_renewed_certificate_is_used_without_a_restart(tas: Tas, files: Path, tmp_path: Path) -> None:
    async with tas.running("run", "all", *flags(files, tmp_path)) as running:
        await running.ready()
        again = await create(tas, tmp_path / "again")
        for name in ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key"):  # one after the other, in place
            shutil.copyfile(again / name, files / name)
        await running.logged("certificates_loaded")

        async def renewed() -> bool:
            with suppress(aiohttp.ClientError):  # a first load may have found only some of the files
                return bool(await version(running, trusting(files, "client")))
            return False

        await eventually(renewed)


async def test_a_key_of_another_certificate_ends_the_start_with_one_line(tas: Tas, files: Path, tmp_path: Path) -> None:
    shutil.copyfile(files / "client.key", files / "tls.key")
    done = await tas("run", "all", *flags(files, tmp_path), TAS_LOG_FORMAT="json")
    assert done.code == 2
    assert f"--key {files / 'tls.key'}: is not the key of --cert {files / 'tls.crt'}" in done.err
    assert "Traceback" not in done.err
