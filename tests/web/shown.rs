//! Reads the contents of the status page, and checks its layout and accessibility.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::browser::Browser;

/// Returns the rows of a table as a map. The key of a row is the text of its first cell. Each row
/// maps the headings of the other columns to the texts of their cells.
pub(crate) fn rows(browser: &Browser, table: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let found = browser.script(&format!(
        "const heads = [...document.querySelectorAll('#{table} thead th')].map(th => th.textContent);
         return [...document.querySelectorAll('#{table} tbody tr')].map(tr =>
             [...tr.cells].map((cell, i) => [heads[i], [...cell.childNodes].map(n => n.textContent).join(' ')]))"
    ));
    let row = |row: &Value| {
        let cells: Vec<(String, String)> = serde_json::from_value(row.clone()).unwrap();
        (cells[0].1.clone(), cells.into_iter().skip(1).collect())
    };
    found.as_array().unwrap().iter().map(row).collect()
}

/// Returns the warnings that the page shows.
pub(crate) fn notes(browser: &Browser) -> Vec<String> {
    let found =
        browser.script("return [...document.querySelectorAll('#notes li')].map(li => li.textContent)");
    serde_json::from_value(found).unwrap()
}

/// Returns the names of elements that are wider than the screen. If the page scrolls horizontally,
/// the list includes the page.
pub(crate) fn overflowing(browser: &Browser) -> Value {
    browser.script(
        "const wide = [...document.querySelectorAll('body *')].filter(e => e.tagName !== 'CAPTION' && !e.closest('svg')
             && e.getBoundingClientRect().right > innerWidth + .5);
         const page = document.documentElement.scrollWidth > innerWidth ? ['the page'] : [];
         return page.concat(wide.map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)))",
    )
}

/// Returns the elements whose text contrast with the background is below 4.5 to 1 (WCAG 2.2,
/// 1.4.3).
pub(crate) fn faint(browser: &Browser) -> Value {
    browser.script(
        "const parse = text => { const p = text.match(/[\\d.]+/g).map(Number); return [p.slice(0, 3), p[3] ?? 1] };
         const light = rgb => { const [r, g, b] = rgb.map(c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
             return .2126 * r + .7152 * g + .0722 * b };
         const behind = e => { for (; e; e = e.parentElement) {
             const [rgb, a] = parse(getComputedStyle(e).backgroundColor); if (a === 1) return rgb } return [255, 255, 255] };
         const found = [];
         for (const e of document.querySelectorAll('body *')) {
             const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
             if (!own || e.tagName === 'SCRIPT' || !e.getClientRects().length) continue;
             const [one, two] = [light(parse(getComputedStyle(e).color)[0]), light(behind(e))].sort((a, b) => b - a);
             const ratio = (one + .05) / (two + .05);
             if (ratio < 4.5) found.push(`${e.tagName}.${e.className} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
         }
         return found",
    )
}

/// Returns accessibility problems. Every table must have a name, every cell a role, and every image
/// and input field a label.
pub(crate) fn unlabelled(browser: &Browser) -> Value {
    browser.script(
        "const bad = [];
         if (!document.documentElement.lang) bad.push('no language');
         for (const t of document.querySelectorAll('table')) {
             if (!t.caption || !t.caption.textContent) bad.push('no caption');
             if (t.getAttribute('role') !== 'table') bad.push('no role');
             for (const th of t.querySelectorAll('th')) if (!th.scope) bad.push('no scope: ' + th.textContent);
             for (const c of t.querySelectorAll('td')) if (c.getAttribute('role') !== 'cell') bad.push('cell');
         }
         for (const e of document.querySelectorAll('svg, input')) if (!e.getAttribute('aria-label')) bad.push(e.tagName);
         for (const s of document.querySelectorAll('section'))
             if (!document.getElementById(s.getAttribute('aria-labelledby'))) bad.push('section');
         return bad",
    )
}
