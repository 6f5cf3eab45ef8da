//! The behaviours of an origin: each has a name, which is part of the request's target.

use anyhow::{Context, Result};

/// What a client may rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Conduct {
    /// The response is complete: the client must get it completely, or a clean error.
    Right,
    /// The response is right, but bytes follow that belong to no request.
    Surplus,
    /// The response is broken, or missing.
    Broken,
}

macro_rules! modes {
    ($($variant:ident $name:literal $conduct:ident $weight:literal,)*) => {
        /// One behaviour.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub(super) enum Mode { $($variant),* }

        /// Each with its name, its conduct, and its weight.
        const MODES: &[(Mode, &str, Conduct, u32)] =
            &[$((Mode::$variant, $name, Conduct::$conduct, $weight)),*];
    };
}

modes! {
    // One write; the head apart; each byte apart; pieces; pieces with pauses.
    Plain "plain" Right 30,
    HeadApart "head-apart" Right 10,
    Bytewise "bytewise" Right 2,
    Pieces "pieces" Right 8,
    Dribble "dribble" Right 3,
    Late "late" Right 3,
    Chunked "chunked" Right 10,
    Extensions "chunk-extensions" Right 4,
    Trailers "chunk-trailers" Right 4,
    EarlyHints "early-hints" Right 3,
    Interims "interims" Right 2,
    CloseDelimited "close-delimited" Right 3,
    AnnouncedClose "announced-close" Right 3,
    OldVersion "http10" Right 2,
    KeepAliveField "keep-alive-field" Right 4,
    Empty "empty" Right 3,
    NoContent "no-content" Right 3,
    NotModified "not-modified" Right 3,
    // Closes after a complete response that did not announce this, at once or a little later.
    UnannouncedClose "unannounced-close" Right 3,
    IdleClose "idle-close" Right 3,
    // After a response that announces the end.
    SurplusAfterClose "surplus-after-close" Right 2,
    // In one write with the response, so a check before the connection is reused sees it.
    SurplusAnswer "surplus-answer" Surplus 6,
    SurplusGarbage "surplus-garbage" Surplus 2,
    SurplusNewline "surplus-newline" Surplus 2,
    SurplusHalfHead "surplus-half-head" Surplus 2,
    SurplusInterim "surplus-interim" Surplus 2,
    SurplusChunked "surplus-chunked" Surplus 4,
    SurplusNoContent "surplus-no-content" Surplus 3,
    SurplusNotModified "surplus-not-modified" Surplus 3,
    SurplusLonger "surplus-longer" Surplus 3,
    // Later, when the connection may be in use again.
    LateSurplus "late-surplus" Surplus 1,
    IdleTimeout "idle-408" Right 1,
    // The response comes before the request's body was read, and the rest of it is taken for requests.
    EarlyWaiting "early-waiting" Surplus 4,
    EarlyAtOnce "early-at-once" Surplus 1,
    // The response comes before the body was read, and the connection ends.
    EarlyRefusal "early-413" Right 3,
    EarlyReset "early-reset" Broken 2,
    Short "short" Broken 3,
    ShortReset "short-reset" Broken 2,
    NoAnswer "no-answer" Broken 2,
    Reset "reset" Broken 2,
    HalfHead "half-head" Broken 2,
    ChunkCut "chunk-cut" Broken 2,
    BadChunk "bad-chunk" Broken 2,
    TwoLengths "two-lengths" Broken 2,
    LengthAndChunked "length-and-chunked" Broken 2,
    BadLength "bad-length" Broken 2,
    Garbage "garbage" Broken 2,
    Unasked101 "unasked-101" Broken 2,
    EndlessInterims "endless-interims" Broken 1,
    HugeHead "huge-head" Broken 1,
    Stall "stall" Broken 1,
    StallAmid "stall-amid" Broken 1,
}

/// The behaviours of a storm.
pub(super) struct Menu(Vec<(Mode, u32)>);

impl Menu {
    /// The named ones, or all but those named with a leading `!`; `plain` is always included.
    ///
    /// # Errors
    /// When a name is unknown.
    pub(super) fn new(names: &[String]) -> Result<Self> {
        let mut only: Vec<Mode> = Vec::new();
        let mut without: Vec<Mode> = Vec::new();
        for name in names {
            let (list, name) = match name.strip_prefix('!') {
                Some(name) => (&mut without, name),
                None => (&mut only, name.as_str()),
            };
            list.push(Mode::parse(name).with_context(|| format!("there is no mode {name:?}"))?);
        }
        let is_wanted = |mode| {
            mode == Mode::Plain || (only.is_empty() || only.contains(&mode)) && !without.contains(&mode)
        };
        let modes = MODES.iter().map(|(mode, .., weight)| (*mode, *weight));
        Ok(Self(modes.filter(|(mode, _)| is_wanted(*mode)).collect()))
    }

    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> Mode {
        let mut left = random.u32(..self.0.iter().map(|(_, weight)| weight).sum::<u32>());
        for (mode, weight) in &self.0 {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *mode,
            }
        }
        Mode::Plain
    }
}

impl Mode {
    pub(super) fn parse(name: &str) -> Option<Self> {
        MODES.iter().find(|(_, other, ..)| *other == name).map(|(mode, ..)| *mode)
    }

    pub(super) fn name(self) -> &'static str {
        MODES[self as usize].1
    }

    pub(super) fn conduct(self) -> Conduct {
        MODES[self as usize].2
    }

    /// The status of its response.
    pub(super) fn status(self) -> u16 {
        match self {
            Self::NoContent | Self::SurplusNoContent => 204,
            Self::NotModified | Self::SurplusNotModified => 304,
            Self::EarlyRefusal => 413,
            _ => 200,
        }
    }

    /// Whether its response has no body, whatever the request says.
    pub(super) fn is_empty(self) -> bool {
        self == Self::Empty || matches!(self.status(), 204 | 304)
    }

    /// Whether it responds before the request's body was read.
    pub(super) fn is_early(self) -> bool {
        matches!(self, Self::EarlyWaiting | Self::EarlyAtOnce | Self::EarlyRefusal | Self::EarlyReset)
    }

    /// Whether the request's body should contain requests.
    pub(super) fn smuggles(self) -> bool {
        matches!(self, Self::EarlyWaiting | Self::EarlyAtOnce)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_menu_has_the_named_modes() {
        let draw = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut random = fastrand::Rng::with_seed(1);
            let menu = Menu::new(&names).unwrap();
            let mut drawn: Vec<Mode> = (0..5000).map(|_| menu.draw(&mut random)).collect();
            drawn.sort_unstable();
            drawn.dedup();
            drawn
        };
        assert_eq!(draw(&[]).len(), MODES.len());
        assert_eq!(draw(&["short"]), [Mode::Plain, Mode::Short]);
        assert!(!draw(&["!short"]).contains(&Mode::Short));
        assert!(Menu::new(&["no-such".to_owned()]).is_err());
    }

    #[test]
    fn a_mode_is_found_by_its_name_and_its_place() {
        for (place, (mode, name, ..)) in MODES.iter().enumerate() {
            assert_eq!((Mode::parse(name), *mode as usize, mode.name()), (Some(*mode), place, *name));
        }
    }
}
