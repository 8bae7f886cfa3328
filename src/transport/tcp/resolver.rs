//! Names are resolved on a thread of their own, since the system's resolver blocks.

use super::worker::News;
use crate::address::HostPort;
use crate::ids::LinkId;
use crate::transport::mailbox::Mailbox;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

/// Started with the first name. Not waited for at the end: a lookup may take long.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    questions: Option<Sender<(LinkId, HostPort)>>,
}

impl Resolver {
    /// Looks a name up; the answer comes as news.
    pub(super) fn ask(&mut self, link: LinkId, name: HostPort, news: &Arc<Mailbox<News>>) -> io::Result<()> {
        let questions = match self.questions.take() {
            Some(questions) => questions,
            None => {
                let (questions, asked) = mpsc::channel::<(LinkId, HostPort)>();
                let news = Arc::clone(news);
                let answer = move || {
                    while let Ok((link, name)) = asked.recv() {
                        let found = name.resolve().map_err(|error| error.to_string());
                        news.push(News::Resolved { link, found });
                    }
                };
                std::thread::Builder::new().name("kvferry-resolve".into()).spawn(answer)?;
                questions
            }
        };
        let asked = questions.send((link, name));
        self.questions = Some(questions);
        asked.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
