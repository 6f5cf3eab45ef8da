//! The status page in a real browser: `cargo xtask test page`.

mod scene;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use scene::Scene;
use serde_json::json;
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace;

use crate::browser::{self, Browser};

/// The source of the README's picture.
const PICTURE: &str = "page.png";

/// Shared by the checks.
struct Look {
    browser: Browser,
    scene: Scene,
    url: String,
}

/// A check and its name. They run in this order, and later ones stop what earlier ones need.
type Check = (&'static str, fn(&mut Look) -> Result<String>);

const CHECKS: &[Check] = &[
    ("page::it_is_right_when_just_started", just_started),
    ("page::values_change_under_load", values_change),
    ("page::the_chart_reads_single_seconds", reads_seconds),
    ("page::an_unhealthy_endpoint_turns_red", turns_red),
    ("page::it_fits_into_360_pixels", fits),
    ("page::keys_sort_and_focus_is_seen", keys),
    ("page::no_complaints_and_no_other_requests", quiet),
    ("page::a_lost_connection_is_shown", lost),
];

/// Runs the requested checks: all of them, if any. The binary is built only if it is needed.
///
/// # Errors
/// When the binary is not available. Failed checks are counted, not errors.
pub(crate) fn run(binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    if !CHECKS.iter().any(|(name, _)| tally.wants(name)) {
        return Ok(());
    }
    tally.heading("status page");
    let program = match browser::program() {
        Ok(program) => program,
        Err(error) => {
            tally.skip("page", CHECKS.len(), &format!("Chromium is not available: {error:#}"));
            return Ok(());
        }
    };
    let binary = binary()?;
    let started = Scene::start(&binary).and_then(|scene| {
        let profile = workspace::scratch("page")?.join("profile");
        let url = format!("http://{}/", scene.admin);
        Ok(Look { browser: Browser::start(program, &profile)?, scene, url })
    });
    match started {
        Ok(mut look) => {
            for (name, check) in CHECKS {
                tally.check(name, || check(&mut look).map_err(|error| told(&look, &error)));
            }
        }
        Err(error) => {
            println!("{error:#}");
            for (name, _) in CHECKS {
                tally.check(name, || Err(anyhow!("the page was not opened, see above")));
            }
        }
    }
    Ok(())
}

fn told(look: &Look, error: &anyhow::Error) -> anyhow::Error {
    anyhow!("{error:#}\n{}\n{}", look.scene.sluice.tail(), look.browser.complaints().join("\n"))
}

/// The number of the tile that shows requests per second.
const RATE: &str = "parseFloat(document.querySelector('.tile b')?.textContent.replace(',', '') ?? '0')";

fn just_started(look: &mut Look) -> Result<String> {
    look.browser.open(&look.url, 1000, 1500, false)?;
    look.browser.wait_until("a status", "document.getElementById('state')?.textContent === 'serving'")?;
    let broken = "[...document.querySelectorAll('main *')].filter((it) => [...it.attributes].some((one) => \
                  /NaN|undefined|Infinity/.test(one.value)) || /NaN|undefined/.test(it.textContent)) \
                  .map((it) => it.outerHTML.slice(0, 200))";
    let broken = look.browser.evaluate(broken)?;
    ensure!(broken == json!([]), "{broken}");
    let points = look.browser.evaluate("now.totals.history.requests.length")?;
    fs::write(workspace::scratch("page")?.join("started.png"), look.browser.screenshot()?)?;
    Ok(format!("with {points} seconds of history"))
}

/// The text of the chart's tip; null while it is hidden.
const TIP: &str = "document.getElementById('tip').hidden ? null : document.getElementById('tip').innerText.replaceAll('\\n', ' ')";

fn reads_seconds(look: &mut Look) -> Result<String> {
    for dark in [false, true] {
        look.browser.open(&look.url, 1280, 1900, dark)?;
        look.browser.wait_until("requests", &format!("{RATE} > 0"))?;
        look.browser.wait_until("a queue", "now.totals.history.queued.some((length) => length > 0)")?;
        let classes =
            "[...document.querySelectorAll('#chart .stack')].map((it) => it.getAttribute('class')).join()";
        look.browser.wait_until("errors in the chart", &format!("({classes}).includes('c-5xx')"))?;
        let name = if dark { "wide-dark.png" } else { "wide.png" };
        look.browser.press("Tab", 9)?;
        look.browser.press("ArrowLeft", 37)?;
        look.browser.press("ArrowLeft", 37)?;
        look.browser.wait_until("a tip", &format!("/99th percentile [\\d.]+ m?s/.test({TIP})"))?;
        fs::write(workspace::scratch("page")?.join(name), look.browser.screenshot()?)?;
        look.browser.press("Escape", 27)?;
        look.browser.wait_until("no tip", &format!("({TIP}) === null"))?;
        let right = "document.getElementById('chart').getBoundingClientRect()";
        let place = look.browser.evaluate(&format!("[{right}.right - 10, {right}.top + 80]"))?;
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else {
            return Err(anyhow!("the chart is at {place}"));
        };
        look.browser.point(x, y)?;
        look.browser.wait_until("a tip by the mouse", &format!("/2xx [\\d.]+\\/s/.test({TIP})"))?;
        look.browser.point(1.0, 1.0)?;
        look.browser.wait_until("no tip", &format!("({TIP}) === null"))?;
    }
    let codes = look.browser.evaluate("document.getElementById('codes').innerText")?;
    ensure!(codes.as_str().is_some_and(|codes| codes.contains("200") && codes.contains("500")), "{codes}");
    Ok("by keys and by mouse".to_owned())
}

fn values_change(look: &mut Look) -> Result<String> {
    look.browser.open(&look.url, 1000, 1500, false)?;
    look.browser.wait_until("requests", &format!("{RATE} > 0"))?;
    let rate = look.browser.evaluate(RATE)?;
    look.browser.wait_until("another rate", &format!("{RATE} > 0 && {RATE} !== {rate}"))?;
    let plotted = "document.querySelector('#chart .stack').getAttribute('d').split('L').length > 3";
    look.browser.wait_until("a curve", plotted)?;
    look.browser.wait_until("latencies", "/\\d ms/.test(document.getElementById('tiles').innerText)")?;
    let healthy =
        "[...document.querySelectorAll('.ends .pill')].filter((it) => it.textContent === 'healthy').length";
    look.browser.wait_until("three healthy endpoints", &format!("{healthy} === 3"))?;
    let title =
        look.browser.evaluate("document.title + ', ' + document.getElementById('state').textContent")?;
    ensure!(title == "sluice, serving", "it shows {title}");
    Ok(format!("{rate} requests/s, then others"))
}

fn turns_red(look: &mut Look) -> Result<String> {
    look.browser.open(&look.url, 1280, 1500, false)?;
    look.browser.wait_until("requests", &format!("{RATE} > 0"))?;
    look.scene.second.stop()?;
    let endpoint = look.scene.endpoint;
    let row = format!(
        "[...document.querySelectorAll('.ends tbody tr')].find((row) => row.innerText.includes('{endpoint}'))"
    );
    look.browser
        .wait_until("the state", &format!("{row}.querySelector('.pill').textContent === 'unhealthy'"))?;
    let color = look.browser.evaluate(&format!("getComputedStyle({row}.querySelector('.pill')).color"))?;
    ensure!(color == "rgb(179, 38, 30)", "its colour is {color}");
    ensure!(look.browser.evaluate(&format!("{row}.className"))? == "down", "its row is like the others");
    let said = look.browser.evaluate("document.getElementById('said').textContent")?;
    ensure!(said == json!(format!("{endpoint} of site is unhealthy")), "the announcement is {said}");
    fs::write(workspace::scratch("page")?.join(PICTURE), look.browser.screenshot()?)?;
    Ok(format!("{endpoint} is {color}"))
}

fn fits(look: &mut Look) -> Result<String> {
    // With all details open, in both colour schemes.
    for dark in [false, true] {
        look.browser.open(&look.url, 360, 2600, dark)?;
        look.browser.wait_until("requests", &format!("{RATE} > 0"))?;
        look.browser.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")?;
        let width = look.browser.evaluate("document.documentElement.scrollWidth")?;
        let beyond = "[...document.querySelectorAll('main *:not(pre)')].filter((it) => !it.closest('pre') \
                      && it.getBoundingClientRect().right > innerWidth + 0.5).map((it) => it.outerHTML.slice(0, 200))";
        let beyond = look.browser.evaluate(beyond)?;
        ensure!(width == 360 && beyond == json!([]), "it is {width} wide, for {beyond}");
        let ground = look.browser.evaluate("getComputedStyle(document.body).backgroundColor")?;
        let wanted = if dark { "rgb(18, 23, 26)" } else { "rgb(245, 246, 244)" };
        ensure!(ground == wanted, "its background is {ground}");
        let name = if dark { "narrow-dark.png" } else { "narrow.png" };
        fs::write(workspace::scratch("page")?.join(name), look.browser.screenshot()?)?;
    }
    Ok("360 px wide, in both colour schemes".to_owned())
}

fn keys(look: &mut Look) -> Result<String> {
    look.browser.open(&look.url, 1000, 1000, false)?;
    look.browser.wait_until("requests", &format!("{RATE} > 0"))?;
    look.browser.press("Tab", 9)?;
    ensure!(look.browser.evaluate("document.activeElement.id")? == "chart", "the chart has no focus");
    look.browser.press("Tab", 9)?;
    let focused = "document.activeElement.tagName + ' ' + document.activeElement.textContent";
    ensure!(
        look.browser.evaluate(focused)? == "BUTTON Endpoint",
        "the first is {}",
        look.browser.evaluate(focused)?
    );
    let outline = look.browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")?;
    ensure!(outline == "solid", "the focus is marked {outline}");
    let sorted = "document.activeElement.closest('th').getAttribute('aria-sort')";
    for wanted in ["ascending", "descending"] {
        look.browser.press("Enter", 13)?;
        look.browser.wait_until(wanted, &format!("{sorted} === '{wanted}'"))?;
    }
    let labels = "[...document.querySelectorAll('[aria-label=\"Endpoints of site\"] tbody tr')]\
                  .map((row) => row.querySelector('span').textContent)";
    let order = look.browser.evaluate(labels)?;
    let is_down = look.browser.evaluate(&format!("({labels})[0] > ({labels})[1]"))?;
    ensure!(is_down == json!(true), "the order is {order}");
    Ok(format!("sorted by key: {order}"))
}

fn quiet(look: &mut Look) -> Result<String> {
    let complaints = look.browser.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    let requests = look.browser.requests();
    let known =
        [look.url.clone(), format!("{}events", look.url), "data:,".to_owned(), "about:blank".to_owned()];
    let others: Vec<&String> = requests.iter().filter(|request| !known.contains(request)).collect();
    ensure!(others.is_empty(), "it has requested {others:?}");
    Ok(format!("{} requests, all for the page and its events", requests.len()))
}

fn lost(look: &mut Look) -> Result<String> {
    look.browser.wait_until("a live page", "document.getElementById('link').textContent === 'live'")?;
    look.scene.sluice.stop()?;
    look.browser.wait_until("a word", "!document.getElementById('lost').hidden")?;
    let said = look.browser.evaluate("document.getElementById('lost').textContent")?;
    ensure!(said.as_str().is_some_and(|said| said.starts_with("Connection lost, retrying")), "{said}");
    Ok("it shows the loss".to_owned())
}
