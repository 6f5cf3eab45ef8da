//! The terminal: set up, drawn on, and restored, however the program ends.

use crate::top::TopError;
use std::io::{IsTerminal, stdin, stdout};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use crossterm::event::{self, Event};
use nix::sys::signal::{SigSet, Signal};
use sluice_control::status::Document;

use super::Source;
use super::app::{App, Next};
use super::draw::draw;

/// Time between two documents; sluice creates one a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon news are drawn when no key is pressed.
const POLL: Duration = Duration::from_millis(100);

enum News {
    Fetched(Box<Result<Document, TopError>>),
    /// A signal asks to quit.
    End,
}

/// Shows the document until `q`, Ctrl-C or a signal.
pub(super) fn run(source: Source, fleet: bool) -> Result<(), TopError> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err("standard output is not a terminal; use --once, or --once --json".into());
    }
    // Waits for the first response before setting up the screen, so that a mistake is printed normally.
    let mut app = App::default();
    app.fleet = fleet;
    app.take(Ok(source.fetch()?));
    let news = follow(source).map_err(|error| format!("cannot wait for signals: {error}"))?;
    let mut terminal = ratatui::try_init().map_err(|error| format!("cannot set up the terminal: {error}"))?;
    let ended = show(&mut terminal, &mut app, &news);
    ratatui::restore();
    ended.map_err(|error| format!("terminal: {error}").into())
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    news: &Receiver<News>,
) -> std::io::Result<()> {
    loop {
        terminal.draw(|frame| draw(frame, app))?;
        if event::poll(POLL)?
            && let Event::Key(key) = event::read()?
            && app.key(key) == Next::Quit
        {
            return Ok(());
        }
        for news in news.try_iter() {
            match news {
                News::Fetched(fetched) => app.take(*fetched),
                News::End => return Ok(()),
            }
        }
    }
}

/// Threads that fetch documents and wait for signals. They end with the process.
fn follow(source: Source) -> nix::Result<Receiver<News>> {
    let (sender, news) = mpsc::channel();
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Before any thread starts, because threads inherit the mask. Unblocked signals would kill the process without
    // restoring the terminal.
    signals.thread_block()?;
    let for_end = Sender::clone(&sender);
    thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = for_end.send(News::End);
        }
    });
    thread::spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            if sender.send(News::Fetched(Box::new(source.fetch()))).is_err() {
                return;
            }
        }
    });
    Ok(news)
}
