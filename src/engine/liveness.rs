//! Signs of life on links: a ping to those that were silent, an end to those that stayed so.
//!
//! There is one time for all links: the earliest at which one of them has to be looked at. A link that
//! is heard of meanwhile is looked at too early, which costs at most a pass over the links an interval.
//! Pings that are almost due go with one that is, so that idle links soon beat together.

use super::core::Core;
use super::links::Link;
use super::shared::Shared;
use crate::config::Liveness;
use crate::error::{ErrorKind, Fault};
use crate::ids::LinkId;
use crate::wire::Frame;
use std::time::{Duration, Instant};

/// When links have to be looked at.
#[derive(Debug, Default)]
pub(super) struct Beat {
    next: Option<Instant>,
}

/// What a silent link needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Need {
    End(Duration),
    Ping,
}

impl Beat {
    /// There is a link that was heard of just now.
    pub(super) fn watch(&mut self, now: Instant, liveness: &Liveness) {
        let first = now.checked_add(liveness.interval);
        self.next = self.next.into_iter().chain(first).min();
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Looks at the links, if it is time.
    fn look<'l>(
        &mut self,
        now: Instant,
        liveness: &Liveness,
        links: impl Iterator<Item = (&'l LinkId, &'l mut Link)>,
    ) -> Vec<(LinkId, Need)> {
        let mut needs = Vec::new();
        let Some(due) = self.next.filter(|due| *due <= now) else { return needs };
        let Liveness { interval, timeout } = *liveness;
        // This side was away: what peers said meanwhile may not have been read yet.
        let was_away = now.saturating_duration_since(due) >= interval;
        let soon = now + SOON.min(interval / 8);
        self.next = None;
        for (&id, link) in links.filter(|(_, link)| link.is_connected && link.reason.is_none()) {
            if was_away && let Some(back) = now.checked_sub(interval) {
                link.heard = link.heard.max(back);
            }
            let silence = now.saturating_duration_since(link.heard);
            if silence >= timeout {
                needs.push((id, Need::End(silence)));
                continue;
            }
            let mut ping = link.heard.max(link.pinged).checked_add(interval);
            if ping.is_some_and(|ping| ping <= soon) {
                needs.push((id, Need::Ping));
                link.pinged = now;
                ping = now.checked_add(interval);
            }
            let end = link.heard.checked_add(timeout);
            self.next = self.next.into_iter().chain(ping).chain(end).min();
        }
        needs
    }
}

impl Core {
    /// Pings links that were silent, and ends those that stayed so.
    pub(super) fn beat(&mut self, shared: &Shared, now: Instant) {
        let needs = self.beat.look(now, &shared.config.liveness, self.links.iter_mut());
        for (id, need) in needs {
            match need {
                Need::End(silence) => {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.is_silent = true;
                    }
                    let detail = format!("no sign of life for {silence:.1?}");
                    self.end_link(id, Fault::new(ErrorKind::PeerLost, detail));
                }
                Need::Ping => {
                    self.pings += 1;
                    let token = self.pings;
                    self.send(id, &Frame::Ping { token });
                }
            }
        }
    }
}

/// How much too early a ping may be.
const SOON: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock;
    use crate::transport::{Caps, WriteModel};
    use std::collections::BTreeMap;

    const LIVENESS: Liveness =
        Liveness { interval: Duration::from_millis(500), timeout: Duration::from_millis(1700) };

    fn link(now: Instant) -> Link {
        let caps = Caps { write_model: WriteModel::TwoSided, max_control: 1, max_write: 1 };
        let mut link = Link::new(now, 0, caps);
        link.is_connected = true;
        link
    }

    /// Needs of one link that was heard of at the start, each with the time at which it is found.
    fn needs(mut heard: impl FnMut(Duration, &mut Link)) -> Vec<(u128, Need)> {
        let start = clock::now();
        let mut links = BTreeMap::from([(LinkId::allocate(), link(start))]);
        let mut beat = Beat::default();
        beat.watch(start, &LIVENESS);
        let mut found = Vec::new();
        while let Some(now) = beat.deadline().filter(|at| *at < start + Duration::from_secs(10)) {
            links.values_mut().for_each(|link| heard(now - start, link));
            let needs = beat.look(now, &LIVENESS, links.iter_mut());
            found.extend(needs.into_iter().map(|(_, need)| ((now - start).as_millis(), need)));
        }
        found
    }

    #[test]
    fn a_silent_link_is_pinged_each_interval_and_ended_at_the_limit() {
        let end = Need::End(LIVENESS.timeout);
        let wanted = [(500, Need::Ping), (1000, Need::Ping), (1500, Need::Ping), (1700, end)];
        assert_eq!(needs(|_, _| ()), wanted);
    }

    #[test]
    fn a_link_that_is_heard_of_now_and_then_is_never_ended() {
        // The last sign of life before each look is 0.3 s old: nothing has to be done at all.
        let start = clock::now();
        let recent = |at: Duration, link: &mut Link| {
            link.heard = link.heard.max(start + at.saturating_sub(Duration::from_millis(300)));
        };
        assert_eq!(needs(recent), []);
        // And one a second: pinged, and kept.
        let rare = |at: Duration, link: &mut Link| {
            link.heard = link.heard.max(start + Duration::from_secs(at.as_secs()));
        };
        assert!(needs(rare).iter().all(|(_, need)| *need == Need::Ping));
    }

    #[test]
    fn the_time_this_side_was_away_is_not_held_against_its_peers() {
        let start = clock::now();
        let mut links = BTreeMap::from([(LinkId::allocate(), link(start))]);
        let mut beat = Beat::default();
        beat.watch(start, &LIVENESS);
        let back = start + Duration::from_secs(60);
        let needs = beat.look(back, &LIVENESS, links.iter_mut());
        assert!(matches!(needs[..], [(_, Need::Ping)]), "{needs:?}");
        let left = LIVENESS.timeout - LIVENESS.interval;
        while beat.deadline().unwrap() < back + left {
            let at = beat.deadline().unwrap();
            assert!(beat.look(at, &LIVENESS, links.iter_mut()).iter().all(|(_, need)| *need == Need::Ping));
        }
        let needs = beat.look(back + left, &LIVENESS, links.iter_mut());
        assert!(matches!(needs[..], [(_, Need::End(_))]), "{needs:?}");
    }

    #[test]
    fn a_hundred_idle_links_are_looked_at_together() {
        let start = clock::now();
        let mut beat = Beat::default();
        let mut links = BTreeMap::new();
        for ms in 0..100 {
            let now = start + Duration::from_millis(5 * ms);
            beat.watch(now, &LIVENESS);
            links.insert(LinkId::allocate(), link(now));
        }
        let mut looks = 0;
        while let Some(now) = beat.deadline().filter(|at| *at < start + Duration::from_secs(60)) {
            looks += 1;
            for (id, need) in beat.look(now, &LIVENESS, links.iter_mut()) {
                assert_eq!(need, Need::Ping);
                links.get_mut(&id).unwrap().heard = now + Duration::from_millis(1); // it answers
            }
        }
        assert!(looks < 60 * 2 * 12, "{looks} looks in a minute");
    }
}
