//! What came out, as JSON and as a table.

use serde::Serialize;

/// The figures of one case.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) runner: String,
    pub(crate) case: &'static str,
    /// Of one side.
    pub(crate) pool_bytes: u64,
    pub(crate) warmup: Repetition,
    pub(crate) reps: Vec<Repetition>,
    /// Most bytes resident.
    pub(crate) peak_rss: Peaks,
}

#[derive(Debug, Serialize)]
pub(crate) struct Repetition {
    /// From the sender's start to the receiver's knowledge that all is in place.
    pub(crate) seconds: f64,
    /// Of pages.
    pub(crate) bytes: u64,
    pub(crate) verified: bool,
    /// Seconds of processor time.
    pub(crate) cpu_sender: f64,
    pub(crate) cpu_receiver: f64,
    /// Of requests one after the other: until the sender knows that its pages are free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) round_us: Option<Micros>,
    /// Of requests one after the other: until the receiver knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oneway_us: Option<Micros>,
    /// Of requests at once, from their common start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_seconds: Option<Vec<f64>>,
}

/// Times of many, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Micros {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) min: f64,
    pub(crate) n: usize,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Peaks {
    pub(crate) sender: u64,
    pub(crate) receiver: u64,
}

impl Report {
    pub(crate) fn is_verified(&self) -> bool {
        self.warmup.verified && self.reps.iter().all(|rep| rep.verified)
    }

    /// One line of the table, below its heading if it is the first.
    pub(crate) fn line(&self, is_first: bool) -> String {
        let rates: Vec<f64> = self.reps.iter().map(Repetition::rate).collect();
        let cpu: Vec<f64> = self.reps.iter().map(Repetition::cpu_per_gb).collect();
        let [low, middle, high] = quartet(rates);
        let [_, cpu, _] = quartet(cpu);
        let latency = self.reps.iter().filter_map(|rep| rep.round_us.as_ref()).map(|round| round.p50);
        let [_, latency, _] = quartet(latency.collect());
        let round = if latency.is_nan() { "-".into() } else { format!("{latency:.1}") };
        let ok = if self.is_verified() { "yes" } else { "NO" };
        let heading = match is_first {
            true => format!(
                "{:<16} {:>4} {:>8} {:>8} {:>8} {:>9} {:>9} {:>4}\n",
                "runner", "case", "GB/s", "min", "max", "CPU s/GB", "round us", "ok"
            ),
            false => String::new(),
        };
        format!(
            "{heading}{:<16} {:>4} {middle:>8.2} {low:>8.2} {high:>8.2} {cpu:>9.2} {round:>9} {ok:>4}",
            self.runner, self.case
        )
    }
}

impl Repetition {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn gigabytes(&self) -> f64 {
        self.bytes as f64 / 1e9
    }

    /// Gigabytes a second.
    fn rate(&self) -> f64 {
        self.gigabytes() / self.seconds
    }

    fn cpu_per_gb(&self) -> f64 {
        (self.cpu_sender + self.cpu_receiver) / self.gigabytes()
    }
}

impl Micros {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn of(mut nanoseconds: Vec<u64>) -> Self {
        nanoseconds.sort_unstable();
        let n = nanoseconds.len();
        let at = |hundredths: usize| {
            let place = (n * hundredths / 100).min(n.saturating_sub(1));
            nanoseconds.get(place).map_or(f64::NAN, |time| *time as f64 / 1e3)
        };
        Self { p50: at(50), p99: at(99), min: at(0), n }
    }
}

/// The least, the middle and the most; not numbers if there are none.
fn quartet(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    [at(0), at(values.len() / 2), at(values.len().saturating_sub(1))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_places_in_order() {
        let Micros { p50, p99, min, n } = Micros::of((1..=100).rev().map(|us| us * 1000).collect());
        assert_eq!((p50, p99, min, n), (51.0, 100.0, 1.0, 100));
        assert_eq!(quartet(vec![3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
    }
}
