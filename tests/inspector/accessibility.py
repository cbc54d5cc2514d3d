"""The checks of axe-core in a page of the inspector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real.node_packages import install

_SEVERE = ("serious", "critical")
_RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, impact, nodes }) =>
    nodes.map(({ html, failureSummary }) => [impact, `${id}: ${html.slice(0, 200)}: ${failureSummary}`]));
}"""


async def severe_findings(page: Any) -> list[str]:
    """Return what axe calls serious or critical in a page; skip the test if axe cannot be installed."""
    script = install(Path(__file__).parent / "axe") / "node_modules" / "axe-core" / "axe.min.js"
    # Evaluated by the driver, because the policy of the page allows no other script.
    await page.evaluate(script.read_text(encoding="utf-8"))
    return [text for impact, text in await page.evaluate(_RUN) if impact in _SEVERE]


async def check_both_themes(page: Any) -> None:
    """Assert that axe finds nothing severe in the page, light and dark."""
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        findings = await severe_findings(page)
        assert not findings, f"{theme}: {findings}"
