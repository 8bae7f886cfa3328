//! How an engine of the tests is set up, also as text for another process.

use crate::end::deadlines;
use kvferry::Config;
use kvferry::transport::Transport;
use kvferry::transport::tcp::{TcpConfig, TcpTransport};
use std::net::SocketAddr;
use std::time::Duration;

/// What joins the processes of a test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fabric {
    Tcp,
}

impl Fabric {
    /// All, with the names they have in a plan.
    const ALL: [(Self, &str); 1] = [(Self::Tcp, "tcp")];

    fn transport(self, bind: SocketAddr) -> Box<dyn Transport> {
        match self {
            Self::Tcp => Box::new(TcpTransport::new(TcpConfig::new().bind(bind)).unwrap()),
        }
    }
}

/// An engine of a test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Plan {
    pub(crate) fabric: Fabric,
    pub(crate) group: String,
    pub(crate) tp: u32,
    /// Where TCP listens.
    pub(crate) bind: SocketAddr,
    /// Pages of each pool.
    pub(crate) pages: u32,
    /// Pause between signs of life and the silence that ends a link, or the defaults.
    pub(crate) liveness: Option<(Duration, Duration)>,
    /// How long ended rooms are remembered.
    pub(crate) discover: Duration,
    pub(crate) salt: u64,
}

impl Plan {
    pub(crate) fn new(fabric: Fabric, group: &str, tp: u32) -> Self {
        Self {
            fabric,
            group: group.to_owned(),
            tp,
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            pages: 128,
            liveness: None,
            discover: Duration::from_secs(300),
            salt: 0,
        }
    }

    pub(crate) fn liveness(mut self, interval: u64, timeout: u64) -> Self {
        self.liveness = Some((Duration::from_millis(interval), Duration::from_millis(timeout)));
        self
    }

    /// Every deadline is far away, so that none can explain an end.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.deadlines = deadlines(Duration::from_secs(300));
        config.deadlines.discover = self.discover;
        // Many small writes, so that a fault finds some under way.
        config.limits.write_bytes = 32 << 10;
        config.limits.in_flight_bytes = 512 << 10;
        if let Some((interval, timeout)) = self.liveness {
            (config.liveness.interval, config.liveness.timeout) = (interval, timeout);
        }
        config
    }

    pub(crate) fn transport(&self) -> Box<dyn Transport> {
        self.fabric.transport(self.bind)
    }

    pub(crate) fn to_text(&self) -> String {
        let fabric = Fabric::ALL.iter().find(|(fabric, _)| *fabric == self.fabric).unwrap().1;
        let (interval, timeout) = self.liveness.unwrap_or_default();
        let millis = [interval, timeout, self.discover].map(|time| time.as_millis().to_string()).join(" ");
        format!("{fabric} {} {} {} {} {} {millis}", self.group, self.tp, self.bind, self.pages, self.salt)
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let [fabric, group, tp, bind, pages, salt, interval, timeout, discover] = words[..] else {
            panic!("a plan of {} words", words.len());
        };
        let fabric = Fabric::ALL.iter().find(|(_, name)| *name == fabric).unwrap().0;
        let mut plan = Self::new(fabric, group, tp.parse().unwrap());
        (plan.bind, plan.pages) = (bind.parse().unwrap(), pages.parse().unwrap());
        plan.salt = salt.parse().unwrap();
        plan.discover = Duration::from_millis(discover.parse().unwrap());
        if timeout != "0" {
            plan = plan.liveness(interval.parse().unwrap(), timeout.parse().unwrap());
        }
        plan
    }
}

#[test]
fn a_plan_survives_the_way_to_another_process() {
    let plan = Plan::new(Fabric::Tcp, "prefill", 3);
    assert_eq!(Plan::from_text(&plan.to_text()), plan);
    let plan = plan.liveness(50, 300);
    assert_eq!(Plan::from_text(&plan.to_text()), plan);
}
