//! Texts to run the model on without typing one.

/// The opening of "Alice's Adventures in Wonderland" by Lewis Carroll (1865, public domain): a long prompt
/// to be continued, not answered.
pub const ALICE: &str = include_str!("../prompts/alice.txt");

/// Different questions for the chat format, for runs with several requests.
pub const QUESTIONS: [&str; 4] = [
    "Explain in simple words why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "What are three good habits for learning a new language? Give a reason for each.",
    "Describe how bread is made, from the grain in the field to the loaf on the table.",
];

/// Returns the prompts of further requests: the questions, then single paragraphs of [`ALICE`] to be
/// continued.
pub fn more() -> impl Iterator<Item = String> {
    let paragraphs = ALICE.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
    QUESTIONS.into_iter().map(crate::text::chat).chain(paragraphs.map(str::to_owned))
}
