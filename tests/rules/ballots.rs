//! One outcome for several ranks: those who vote and the one who counts, alone and by seed.

use crate::calls::start;
use kvferry::session::{Ballots, Member, Outcome, Told};
use kvferry::sim::Rng;
use kvferry::wire::{Cause, GroupFrame};
use kvferry::{
    Attempt, BallotId, ErrorKind, Fault, Generation, Instance, KVPoll, LinkId, Party, Rank, Room, Side,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

const DISCOVER: Duration = Duration::from_secs(30);
/// How long a peer that went has to come back.
const GRACE: Duration = Duration::from_millis(500);

fn party(tp: u32) -> Party {
    Party { side: Side::Decode, rank: Rank::tp(tp), instance: Instance(u128::from(tp) + 1) }
}

fn id(room: u64, generation: u64) -> BallotId {
    BallotId { side: Side::Decode, room: Room(room), attempt: Attempt(0), generation: Generation(generation) }
}

fn ranks(count: u32) -> Vec<Rank> {
    (0..count).map(Rank::tp).collect()
}

fn cause(tp: u32, detail: &str) -> Cause {
    let member = Member::new(start(), id(0, 0), party(tp), ranks(1), DISCOVER);
    let mut cause = member.lost(None, ErrorKind::Aborted);
    cause.detail = detail.into();
    cause
}

fn lost() -> Fault {
    Fault::new(ErrorKind::PeerLost, "link lost")
}

/// Rank 0 of a group counts the votes on room 0; the others have a link each.
struct Scene {
    now: Instant,
    ballots: Ballots,
    links: Vec<LinkId>,
    members: Vec<Rank>,
}

impl Scene {
    fn new(count: u32) -> Self {
        Self::with(count, 1 << 20, 100)
    }

    fn with(count: u32, bytes: usize, memories: usize) -> Self {
        let ballots = Ballots::new(party(0), DISCOVER, bytes, memories);
        let links = (0..count).map(|_| LinkId::allocate()).collect();
        Self { now: start(), ballots, links, members: ranks(count) }
    }

    fn enrol(&mut self, tp: u32, generation: u64) -> Vec<Told> {
        let members = self.members.clone();
        self.enrol_as(tp, id(0, generation), &members)
    }

    fn enrol_as(&mut self, tp: u32, id: BallotId, members: &[Rank]) -> Vec<Told> {
        match tp {
            0 => self.ballots.open(self.now, id, members, DISCOVER),
            _ => self.ballots.enrol(self.now, self.links[tp as usize], party(tp), id, members),
        }
    }

    fn vote(&mut self, tp: u32, generation: u64, cause: Option<Cause>) -> Vec<Told> {
        self.ballots.vote(self.now, party(tp), id(0, generation), cause)
    }

    fn down(&mut self, tp: u32) -> Vec<Told> {
        let link = std::mem::replace(&mut self.links[tp as usize], LinkId::allocate());
        self.ballots.link_down(self.now, link, &lost())
    }

    /// Who is told, and what: all the same.
    fn agree(&self, told: &[Told]) -> (BTreeSet<u32>, Option<Cause>) {
        let by_link = |told: &Told| match told.link {
            None => 0,
            Some(link) => {
                let at = self.links.iter().position(|known| *known == link).expect("a link of ours");
                u32::try_from(at).expect("few")
            }
        };
        assert!(told.windows(2).all(|pair| pair[0].cause == pair[1].cause), "{told:?}");
        (told.iter().map(by_link).collect(), told.first().and_then(|told| told.cause.clone()))
    }
}

fn set<const N: usize>(ranks: [u32; N]) -> BTreeSet<u32> {
    BTreeSet::from(ranks)
}

#[test]
fn success_is_told_when_every_member_has_voted_for_it() {
    let mut scene = Scene::new(3);
    for tp in [2, 0, 1] {
        assert_eq!(scene.enrol(tp, 1), []);
    }
    assert_eq!(scene.vote(1, 1, None), []);
    assert_eq!(scene.vote(1, 1, None), [], "once is once");
    assert_eq!(scene.vote(2, 1, None), []);
    let told = scene.vote(0, 1, None);
    assert_eq!(scene.agree(&told), (set([0, 1, 2]), None));
    assert_eq!(scene.ballots.sizes(), (0, 1));
    assert_eq!(scene.vote(0, 1, Some(cause(0, "too late"))), []);
}

#[test]
fn the_first_failure_decides_and_those_who_come_later_hear_it_once() {
    let mut scene = Scene::new(4);
    scene.enrol(1, 1);
    scene.enrol(3, 1);
    scene.vote(1, 1, None);
    let first = cause(3, "first");
    let told = scene.vote(3, 1, Some(first.clone()));
    assert_eq!(scene.agree(&told), (set([1, 3]), Some(first.clone())));
    assert_eq!(scene.vote(1, 1, Some(cause(1, "second"))), []);
    for tp in [0, 2] {
        let told = scene.enrol(tp, 1);
        assert_eq!(scene.agree(&told), (set([tp]), Some(first.clone())));
    }
    // Whoever comes again is about the next use of the room.
    for tp in [2, 0, 1, 3] {
        assert_eq!(scene.enrol(tp, 2), []);
    }
    assert_eq!(scene.ballots.sizes().0, 1);
}

#[test]
fn a_success_may_be_taken_back_until_it_is_told() {
    let mut scene = Scene::new(2);
    scene.enrol(0, 1);
    scene.enrol(1, 1);
    scene.vote(1, 1, None);
    let told = scene.vote(1, 1, Some(cause(1, "client gone")));
    assert_eq!(scene.agree(&told), (set([0, 1]), Some(cause(1, "client gone"))));
}

#[test]
fn a_member_whose_link_ends_fails_the_room_and_hears_it_when_it_is_back() {
    for has_voted in [false, true] {
        let mut scene = Scene::new(3);
        (0..3).for_each(|tp| drop(scene.enrol(tp, 1)));
        if has_voted {
            scene.vote(2, 1, None);
        }
        let told = scene.down(2);
        let (who, why) = scene.agree(&told);
        let why = why.expect("a failure");
        assert_eq!((who, why.origin, why.kind), (set([0, 1]), party(2), ErrorKind::PeerLost));
        let told = scene.enrol(2, 1);
        assert_eq!(scene.agree(&told), (set([2]), Some(why.clone())));
        // As often as that link ends, too, and it never touches the next use.
        scene.enrol(0, 2);
        scene.down(2);
        let told = scene.enrol(2, 1);
        assert_eq!(scene.agree(&told), (set([2]), Some(why)));
        assert_eq!(scene.ballots.sizes().0, 1);
    }
}

#[test]
fn members_that_do_not_come_are_named_at_the_deadline() {
    let mut scene = Scene::new(4);
    let opened = scene.now;
    scene.enrol(2, 1);
    assert_eq!(scene.ballots.deadline(), Some(opened + DISCOVER));
    // The counting rank's own room has its time from its own start on.
    scene.now += Duration::from_secs(20);
    scene.ballots.open(scene.now, id(0, 1), &scene.members.clone(), Duration::from_secs(300));
    scene.now = opened + Duration::from_secs(320);
    assert_eq!(scene.ballots.deadline(), Some(scene.now));
    let told = scene.ballots.tick(scene.now);
    let (who, why) = scene.agree(&told);
    let why = why.expect("a failure");
    assert_eq!((who, why.kind, why.origin), (set([0, 2]), ErrorKind::Timeout, party(0)));
    assert!(why.detail.contains("rank dp0 pp0 cp0 tp1, dp0 pp0 cp0 tp3 has not come"), "{}", why.detail);
    let told = scene.enrol(3, 1);
    assert_eq!(scene.agree(&told), (set([3]), Some(why)));
}

#[test]
fn a_complete_vote_has_no_deadline() {
    let mut scene = Scene::new(2);
    scene.enrol(0, 1);
    scene.enrol(1, 1);
    assert_eq!(scene.ballots.deadline(), None);
}

#[test]
fn members_that_name_different_members_fail_for_it() {
    let mut scene = Scene::new(4);
    scene.enrol(0, 1);
    scene.enrol(1, 1);
    let told = scene.enrol_as(3, id(0, 1), &ranks(5));
    let (who, why) = scene.agree(&told);
    let why = why.expect("a failure");
    assert_eq!((who, why.kind), (set([0, 1, 3]), ErrorKind::Protocol));
    assert!(why.detail.contains("members"), "{}", why.detail);
    let told = scene.enrol(2, 1);
    assert_eq!(scene.agree(&told), (set([2]), Some(why)));
}

#[test]
fn a_rank_that_asks_the_wrong_one_is_refused_alone() {
    let mut scene = Scene::new(3);
    let others = [Rank::tp(1), Rank::tp(2)];
    let (wrong_room, not_it, not_us) = (id(1, 1), id(0, 1), id(0, 1));
    for (id, members) in
        [(wrong_room, ranks(3)), (not_it, vec![Rank::tp(0), Rank::tp(1)]), (not_us, others.to_vec())]
    {
        let told = scene.enrol_as(2, id, &members);
        let (who, why) = scene.agree(&told);
        assert_eq!((who, why.map(|why| why.kind)), (set([2]), Some(ErrorKind::Protocol)));
    }
    assert_eq!(scene.ballots.sizes(), (0, 0), "nothing is kept of it");
}

#[test]
fn a_member_that_comes_anew_ends_its_former_use_for_all() {
    let mut scene = Scene::new(3);
    (0..3).for_each(|tp| drop(scene.enrol(tp, 1)));
    let told = scene.enrol(1, 2);
    let (who, why) = scene.agree(&told);
    assert_eq!((who, why.map(|why| why.origin)), (set([0, 2]), Some(party(1))));
    assert_eq!(scene.ballots.sizes().0, 1, "the next use is under way");
    scene.enrol(0, 2);
    scene.enrol(2, 2);
    (0..2).for_each(|tp| assert_eq!(scene.vote(tp, 2, None), []));
    let told = scene.vote(2, 2, None);
    assert_eq!(scene.agree(&told), (set([0, 1, 2]), None));
}

#[test]
fn an_enrolment_over_another_link_is_another_life_of_the_link() {
    let mut scene = Scene::new(2);
    scene.enrol(0, 1);
    scene.enrol(1, 1);
    let former = std::mem::replace(&mut scene.links[1], LinkId::allocate());
    let told = scene.enrol(1, 1);
    let (who, why) = scene.agree(&told);
    assert_eq!((who, why.map(|why| why.kind)), (set([0, 1]), Some(ErrorKind::PeerLost)));
    assert_eq!(scene.ballots.link_down(scene.now, former, &lost()), []);
}

#[test]
fn a_member_that_was_here_and_has_gone_fails_the_room() {
    let mut scene = Scene::new(3);
    scene.enrol(0, 1);
    scene.enrol(1, 1);
    assert_eq!(scene.ballots.missing(id(0, 1)), [Rank::tp(2)]);
    let enrolled = scene.ballots.gone(scene.now, id(0, 1), Rank::tp(1), None, &lost());
    assert_eq!(enrolled, [], "its link stands for it");
    let told = scene.ballots.gone(scene.now, id(0, 1), Rank::tp(2), Some(Instance(3)), &lost());
    let (who, why) = scene.agree(&told);
    assert_eq!((who, why.map(|why| why.origin)), (set([0, 1]), Some(party(2))));
}

#[test]
fn a_peer_that_enrols_everywhere_takes_bounded_space() {
    let bytes = 64 << 10;
    let mut scene = Scene::with(2, bytes, 50);
    let mut refused = 0;
    for room in 0..10_000 {
        let told = scene.enrol_as(1, id(2 * room, room), &ranks(2));
        refused += told.len();
        assert!(told.iter().all(|told| told.cause.as_ref().is_some_and(|c| c.kind == ErrorKind::Busy)));
    }
    let (open, remembered) = scene.ballots.sizes();
    assert_eq!((open + refused, remembered), (10_000, 50));
    assert!(open * 256 <= bytes, "{open}");
    // The counting rank's own rooms are not in its way.
    scene.now += Duration::from_secs(1);
    assert_eq!(scene.enrol_as(0, id(20_000, 1), &ranks(2)), []);
    assert_eq!(scene.down(1), []);
    assert_eq!(scene.ballots.sizes(), (1, 50));
    scene.now += DISCOVER * 2;
    scene.ballots.tick(scene.now);
    scene.now += DISCOVER * 2;
    scene.ballots.tick(scene.now);
    assert_eq!((scene.ballots.sizes(), scene.ballots.deadline()), ((0, 0), None));
}

#[test]
fn a_member_shows_no_success_it_has_not_had() {
    let mut member = Member::new(start(), id(0, 1), party(1), ranks(2), DISCOVER);
    member.enrol(LinkId::allocate(), party(0));
    assert!(member.hear(None, None, KVPoll::Transferring, GRACE));
    let Some(Outcome::Failed(error)) = member.outcome() else { panic!("{member:?}") };
    assert_eq!((error.kind, error.party()), (ErrorKind::Protocol, party(0)));
    assert!(!member.hear(Some(&cause(0, "later")), None, KVPoll::Transferring, GRACE), "one outcome");
}

#[test]
fn a_member_that_does_not_reach_the_one_who_counts_ends_by_itself() {
    let now = start();
    let mut member = Member::new(now, id(0, 1), party(1), ranks(2), DISCOVER);
    member.still_missing("last try: refused".into());
    assert_eq!((member.deadline(), member.overdue(now)), (Some(now + DISCOVER), None));
    let cause = member.overdue(now + DISCOVER).expect("overdue");
    assert_eq!((cause.kind, cause.origin), (ErrorKind::Timeout, party(1)));
    assert!(cause.detail.contains("tp0") && cause.detail.contains("refused"), "{}", cause.detail);
    member.enrol(LinkId::allocate(), party(0));
    assert_eq!((member.deadline(), member.overdue(now + DISCOVER)), (None, None));
}

/// One rank in a random course of events.
struct Node {
    member: Option<Member>,
    ballots: Ballots,
    is_dead: bool,
    has_succeeded: bool,
    link: LinkId,
    to_coordinator: VecDeque<GroupFrame>,
    from_coordinator: VecDeque<(BallotId, Option<Cause>)>,
    /// When it may be back after a link was lost.
    lost_at: Option<Instant>,
}

/// A group, its coordinator, and everything that happens to them.
struct Walk {
    rng: Rng,
    started: Instant,
    now: Instant,
    nodes: Vec<Node>,
    room: u64,
    failures: u32,
    has_lost_coordinator: bool,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let now = start();
        let count = rng.small(2..6);
        let room = rng.within(0..9);
        let node = |tp| Node {
            member: None,
            ballots: Ballots::new(party(tp), DISCOVER, 1 << 20, 100),
            is_dead: false,
            has_succeeded: false,
            link: LinkId::allocate(),
            to_coordinator: VecDeque::new(),
            from_coordinator: VecDeque::new(),
            lost_at: None,
        };
        let nodes = (0..count).map(node).collect();
        Self { rng, started: now, now, nodes, room, failures: 0, has_lost_coordinator: false }
    }

    fn counting(&self) -> usize {
        usize::try_from(self.room).expect("small") % self.nodes.len()
    }

    fn id(&self, at: usize) -> BallotId {
        id(self.room, 10 + at as u64)
    }

    fn party(at: usize) -> Party {
        party(u32::try_from(at).expect("small"))
    }

    fn members(&self) -> Vec<Rank> {
        ranks(u32::try_from(self.nodes.len()).expect("small"))
    }

    fn tell(&mut self, told: Vec<Told>) {
        let counting = self.counting();
        for Told { link, id, cause, .. } in told {
            match link {
                None => self.hear(counting, cause.as_ref()),
                Some(link) => {
                    let node = self.nodes.iter_mut().find(|node| node.link == link);
                    let node = node.expect("verdicts go over links that live");
                    node.from_coordinator.push_back((id, cause));
                }
            }
        }
    }

    fn hear(&mut self, at: usize, cause: Option<&Cause>) {
        let Some(member) = &mut self.nodes[at].member else { panic!("a verdict for nobody") };
        member.hear(cause, None, KVPoll::Transferring, Duration::ZERO);
    }

    fn open(&mut self, at: usize) {
        let (members, id) = (self.members(), self.id(at));
        let member = Member::new(self.now, id, Self::party(at), members.clone(), DISCOVER);
        self.nodes[at].member = Some(member);
        if at == self.counting() {
            let told = self.nodes[at].ballots.open(self.now, id, &members, DISCOVER);
            self.tell(told);
        } else {
            self.reach(at);
        }
    }

    /// A rank gets through to the one that counts, if that lives.
    fn reach(&mut self, at: usize) {
        let counting = self.counting();
        if self.nodes[counting].is_dead {
            return;
        }
        let node = &mut self.nodes[at];
        node.lost_at = None;
        if let Some(member) = &mut node.member {
            node.to_coordinator.extend(member.enrol(node.link, Self::party(counting)));
        }
    }

    fn vote(&mut self, at: usize, cause: Option<Cause>) {
        let (counting, id, now) = (self.counting(), self.id(at), self.now);
        let node = &mut self.nodes[at];
        let Some(member) = &mut node.member else { return };
        if !member.vote(cause.clone()) {
            return;
        }
        node.has_succeeded |= cause.is_none();
        if at == counting {
            let told = node.ballots.vote(now, Self::party(at), id, cause);
            self.tell(told);
        } else if member.link().is_some() {
            node.to_coordinator.push_back(GroupFrame::Vote { cause });
        }
    }

    /// The link of a rank to the one that counts ends; what was on its way is lost.
    fn cut(&mut self, at: usize) {
        let (counting, now) = (self.counting(), self.now);
        let node = &mut self.nodes[at];
        node.to_coordinator.clear();
        node.from_coordinator.clear();
        let link = std::mem::replace(&mut node.link, LinkId::allocate());
        if let Some(member) = &mut node.member
            && member.link_down(now, link, GRACE)
        {
            node.lost_at = Some(now);
        }
        if !self.nodes[counting].is_dead {
            let told = self.nodes[counting].ballots.link_down(now, link, &lost());
            self.tell(told);
        }
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].is_dead = true;
        if at == self.counting() {
            self.has_lost_coordinator = true;
            (0..self.nodes.len()).filter(|other| *other != at).for_each(|other| self.cut(other));
        } else {
            self.cut(at);
        }
    }

    fn deliver(&mut self, at: usize) {
        let (counting, id, now) = (self.counting(), self.id(at), self.now);
        if self.rng.percent(50)
            && let Some((told, cause)) = self.nodes[at].from_coordinator.pop_front()
        {
            assert_eq!(told, id);
            return self.hear(at, cause.as_ref());
        }
        let Some(frame) = self.nodes[at].to_coordinator.pop_front() else { return };
        let (link, party) = (self.nodes[at].link, Self::party(at));
        let ballots = &mut self.nodes[counting].ballots;
        let told = match frame {
            GroupFrame::Enrol { members } => ballots.enrol(now, link, party, id, &members),
            GroupFrame::Vote { cause } => ballots.vote(now, party, id, cause),
            other => panic!("{other:?}"),
        };
        self.tell(told);
    }

    /// Time passes up to the next thing that is due.
    fn pass(&mut self) {
        let alive = || self.nodes.iter().filter(|node| !node.is_dead);
        let members = alive().filter_map(|node| node.member.as_ref()?.deadline());
        let ballots = alive().filter_map(|node| node.ballots.deadline());
        let Some(next) = members.chain(ballots).min() else { return };
        self.pass_until(next);
    }

    /// Who has lost its link is back in time, where there is somebody to come back to.
    fn pass_until(&mut self, then: Instant) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].lost_at.is_some_and(|since| since + GRACE <= then) {
                self.reach(at);
            }
        }
        self.now = self.now.max(then);
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            if node.is_dead {
                continue;
            }
            let told = node.ballots.tick(self.now);
            self.tell(told);
            let node = &mut self.nodes[at];
            let Some(member) = &node.member else { continue };
            let cause = member.overdue(self.now);
            if member.outcome().is_none()
                && let Some(cause) = cause
            {
                node.lost_at = None;
                self.hear(at, Some(&cause));
            }
        }
    }

    /// One random event.
    fn step(&mut self, mishaps: u64) {
        let at = self.rng.place(self.nodes.len());
        if self.nodes[at].is_dead {
            return;
        }
        match self.rng.within(0..100) {
            0..15 if self.nodes[at].member.is_none() => self.open(at),
            15..60 => self.deliver(at),
            60..75 => self.vote(at, None),
            75..80 if self.nodes[at].lost_at.is_some() => self.reach(at),
            // Not so long that a verdict is forgotten before everybody has come.
            80..83 if self.now < self.started + DISCOVER / 2 => {
                let time = Duration::from_millis(self.rng.within(0..2_000));
                self.pass_until(self.now + time);
            }
            83..100 if self.rng.percent(mishaps) => match self.rng.within(0..10) {
                0..6 => {
                    self.failures += 1;
                    let detail = format!("failure {} of {at}", self.failures);
                    self.vote(at, Some(cause(u32::try_from(at).expect("small"), &detail)));
                }
                6..9 if at != self.counting() => self.cut(at),
                9 => self.kill(at),
                _ => {}
            },
            _ => {}
        }
    }

    /// Everybody opens, votes and comes back, and time passes until all is quiet.
    fn run_out(&mut self) {
        for _ in 0..20 {
            for at in 0..self.nodes.len() {
                if self.nodes[at].is_dead {
                    continue;
                }
                if self.nodes[at].member.is_none() {
                    self.open(at);
                }
                if self.nodes[at].lost_at.is_some() {
                    self.reach(at);
                }
                self.vote(at, None);
                while !self.nodes[at].to_coordinator.is_empty() || !self.nodes[at].from_coordinator.is_empty()
                {
                    self.deliver(at);
                }
            }
            self.pass();
        }
    }

    fn check(&self) -> BTreeMap<String, usize> {
        let alive: Vec<_> = self.nodes.iter().filter(|node| !node.is_dead).collect();
        let mut seen = BTreeMap::new();
        let mut local = 0;
        for node in &alive {
            let member = node.member.as_ref().expect("all have opened");
            let outcome = member.outcome().unwrap_or_else(|| panic!("no end: {member:?}"));
            let name = match outcome {
                Outcome::Success => {
                    assert!(node.has_succeeded, "success before its own");
                    "success".to_owned()
                }
                Outcome::Failed(error) => {
                    local += usize::from(!error.is_from_another_rank());
                    format!("{:?} on {}: {}", error.kind, error.party(), error.detail)
                }
            };
            *seen.entry(name).or_default() += 1;
        }
        if !self.has_lost_coordinator {
            assert!(seen.len() <= 1, "divided: {seen:?}");
            let is_success = seen.contains_key("success");
            assert!(!is_success || self.nodes.iter().all(|node| node.has_succeeded), "{seen:?}");
        }
        let is_local = |(at, node): (usize, &Node)| {
            !node.is_dead && seen.keys().any(|name| name.contains(&Self::party(at).to_string()))
        };
        let arose_here = self.nodes.iter().enumerate().any(is_local);
        assert!(self.has_lost_coordinator || local == usize::from(arose_here), "{local}: {seen:?}");
        assert!(self.nodes.iter().filter(|node| !node.is_dead).all(|node| node.ballots.sizes().0 == 0));
        seen
    }
}

#[test]
fn all_members_end_alike_whatever_the_order_and_whoever_is_lost() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = number("KVF_SEED").map_or(0..number("KVF_SEEDS").unwrap_or(20_000), |seed| seed..seed + 1);
    let mut kinds = BTreeMap::<String, usize>::new();
    for seed in seeds.clone() {
        let mut walk = Walk::new(seed);
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mishaps = seed % 4 * 12;
            for _ in 0..walk.rng.within(0..200) {
                walk.step(mishaps);
            }
            walk.run_out();
            walk.check()
        }));
        let seen = seen.unwrap_or_else(|panic| {
            println!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
        for name in seen.into_keys() {
            let kind = name.split(' ').next().expect("a word").to_owned();
            *kinds.entry(kind).or_default() += 1;
        }
    }
    if seeds.end - seeds.start >= 1000 {
        for kind in ["success", "Aborted", "PeerLost", "Timeout"] {
            assert!(kinds.get(kind).is_some_and(|times| *times > 100), "too little of {kind}: {kinds:?}");
        }
    }
}
