//! The agent at one end of a socket pair, a lab at the other.
use std::os::unix::net::UnixStream;

use super::*;
use crate::cluster::Exit;
use crate::guest::wire::InputKind;

struct Lab {
    to: UnixStream,
    from: BufReader<UnixStream>,
    agent: Option<thread::JoinHandle<Result<()>>>,
}

impl Lab {
    fn new() -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let agent = thread::spawn(move || {
            let enter = |host: &str| vec!["env".to_owned(), format!("HOST={host}")];
            serve(there.try_clone().unwrap(), there, "6.6.6", &enter)
        });
        let mut lab = Self {
            to: here.try_clone().unwrap(),
            from: BufReader::new(here),
            agent: Some(agent),
        };
        assert_eq!(lab.next().0, Reply::Hello("6.6.6".to_owned()));
        lab
    }

    fn ask(&mut self, request: &Request, payload: &[u8]) {
        send(&mut self.to, request, payload).unwrap();
    }

    fn start(&mut self, id: u64, script: &str, input: InputKind) {
        self.ask(
            &Request::Start(Start {
                id,
                host: Some("a".to_owned()),
                argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
                env: vec![("EXTRA".to_owned(), "more".to_owned())],
                cwd: Some(PathBuf::from("/")),
                input,
            }),
            &[],
        );
    }

    fn next(&mut self) -> (Reply, Vec<u8>) {
        receive(&mut self.from).unwrap().unwrap()
    }

    fn close(mut self) {
        self.to.shutdown(std::net::Shutdown::Both).unwrap();
        self.agent.take().unwrap().join().unwrap().unwrap();
    }
}

#[test]
fn a_command_runs_on_its_host_and_its_end_comes_last() {
    let mut lab = Lab::new();
    lab.start(1, "echo $HOST $EXTRA; pwd >&2; exit 4", InputKind::Closed);
    assert_eq!(lab.next().0, Reply::Started(1));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match lab.next() {
            (Reply::Stdout(1), bytes) => out.extend(bytes),
            (Reply::Stderr(1), bytes) => err.extend(bytes),
            (Reply::Exited { id: 1, exit }, _) => {
                assert_eq!(exit, Exit::Code(4));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((out.as_slice(), err.as_slice()), (&b"a more\n"[..], &b"/\n"[..]));
    lab.close();
}

#[test]
fn two_commands_are_fed_and_signalled_apart() {
    let mut lab = Lab::new();
    lab.start(1, "cat; exit 1", InputKind::Pipe);
    assert_eq!(lab.next().0, Reply::Started(1));
    lab.start(2, "sleep 100", InputKind::Closed);
    assert_eq!(lab.next().0, Reply::Started(2));
    lab.ask(&Request::Input(1), b"fed");
    assert_eq!(lab.next(), (Reply::Stdout(1), b"fed".to_vec()));
    lab.ask(
        &Request::Signal {
            id: 2,
            signal: Signal::Kill,
        },
        &[],
    );
    assert_eq!(
        lab.next().0,
        Reply::Exited {
            id: 2,
            exit: Exit::Signal(9)
        }
    );
    lab.ask(&Request::CloseInput(1), &[]);
    assert_eq!(
        lab.next().0,
        Reply::Exited {
            id: 1,
            exit: Exit::Code(1)
        }
    );
    // Words for the dead are no error.
    lab.ask(&Request::Input(1), b"late");
    lab.close();
}

#[test]
fn what_cannot_start_is_refused_with_its_reason() {
    let mut lab = Lab::new();
    lab.ask(
        &Request::Start(Start {
            id: 5,
            host: None,
            argv: vec!["/no/such/program".to_owned()],
            env: Vec::new(),
            cwd: None,
            input: InputKind::Closed,
        }),
        &[],
    );
    match lab.next().0 {
        Reply::Refused { id: 5, why } => assert!(why.contains("/no/such/program"), "{why}"),
        other => panic!("{other:?}"),
    }
    lab.close();
}

#[test]
fn the_end_of_the_lab_is_the_end_of_its_commands() {
    let mut lab = Lab::new();
    lab.start(1, "echo $$; exec sleep 100", InputKind::Closed);
    assert_eq!(lab.next().0, Reply::Started(1));
    let pid = String::from_utf8(lab.next().1).unwrap();
    lab.close();
    let deadline = Instant::now().checked_add(Duration::from_secs(10)).unwrap();
    while PathBuf::from(format!("/proc/{}", pid.trim())).exists() {
        assert!(Instant::now() < deadline, "the command outlives its lab");
        thread::sleep(Duration::from_millis(10));
    }
}
