//! A proxy that writes down what a client says to a server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Everything said through it.
pub struct Wire {
    pub port: u16,
    said: Arc<Mutex<Vec<Message>>>,
}

/// One message of a client: its letter, and the name of a statement or portal it begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub letter: char,
    pub name: String,
}

impl Wire {
    /// In front of a server on this port of this machine; ends with the test.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Self { port: listener.local_addr().unwrap().port(), said: Arc::default() };
        let said = Arc::clone(&wire.said);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                pump(client, server, Arc::clone(&said));
            }
        });
        wire
    }

    /// What was said since the last time.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// How often an answer was waited for since the last time; nothing had a name.
    pub fn round_trips(&self) -> usize {
        let said = self.take();
        let named: Vec<_> =
            said.iter().filter(|m| "PBDEC".contains(m.letter) && !m.name.is_empty()).collect();
        assert!(named.is_empty(), "{named:?}");
        said.iter().filter(|m| "SQ".contains(m.letter)).count()
    }
}

fn pump(client: TcpStream, server: TcpStream, said: Arc<Mutex<Vec<Message>>>) {
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let (mut client, mut server) = (client, server);
        let _ = listen(&mut client, &mut server, &said);
        let _ = server.shutdown(Shutdown::Both);
    });
}

fn listen(client: &mut TcpStream, server: &mut TcpStream, said: &Mutex<Vec<Message>>) -> std::io::Result<()> {
    loop {
        let mut head = [0; 5];
        client.read_exact(&mut head[..1])?;
        // Only the first messages of a connection have no letter; their length begins with a zero.
        let letter = (head[0] != 0).then_some(char::from(head[0]));
        let rest = if letter.is_some() { &mut head[1..] } else { &mut head[1..4] };
        client.read_exact(rest)?;
        let head = if letter.is_some() { &head[..] } else { &head[..4] };
        let length: [u8; 4] = head[head.len() - 4..].try_into().unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
        client.read_exact(&mut body)?;
        if let Some(letter) = letter {
            // A description and a close name what they mean first.
            let skip = usize::from("DC".contains(letter));
            let name = body.iter().skip(skip).take_while(|b| **b != 0).map(|b| char::from(*b)).collect();
            said.lock().unwrap().push(Message { letter, name });
        }
        server.write_all(&[head, &body].concat())?;
    }
}
