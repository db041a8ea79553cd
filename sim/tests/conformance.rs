//! One test body, two disks: what the simulated disk does is what a real one does.

use std::io::ErrorKind;

use continuable::store::disk::{Disk, DiskPath, Entry, EntryKind};
use continuable::store::std_disk::StdDisk;
use continuable_sim::disk::SimDisk;

fn entry(name: &str, kind: EntryKind) -> Entry {
    Entry { name: name.to_owned(), kind }
}

async fn conforms(disk: &dyn Disk) {
    let root = DiskPath::root();
    let (directory, missing) = (root.child("d"), root.child("missing"));
    let (file, other) = (directory.child("f"), directory.child("g"));
    let kind = |error: std::io::Error| error.kind();

    disk.create_directory(&root).await.expect("the root");
    assert_eq!(disk.list(&root).await.expect("the root"), []);
    assert_eq!(disk.list(&missing).await.map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(disk.length(&missing).await.expect("an answer"), None);
    assert_eq!(disk.length(&missing.child("f")).await.expect("an answer"), None);
    assert_eq!(disk.read(&missing, 0, 9).await.map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(disk.append(&file, b"x".to_vec()).await.map_err(kind), Err(ErrorKind::NotFound));
    let made = disk.write_new(&file, b"x".to_vec()).await;
    assert_eq!(made.map_err(kind), Err(ErrorKind::NotFound), "its directory is missing");
    assert_eq!(disk.create_directory(&file).await.map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(disk.sync(&file).await.map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(disk.sync_directory(&missing).await.map_err(kind), Err(ErrorKind::NotFound));

    assert!(disk.create_directory(&directory).await.expect("a directory"));
    assert!(!disk.create_directory(&directory).await.expect("it is there already"));
    disk.write_new(&file, b"0123456789".to_vec()).await.expect("a file");
    let again = disk.write_new(&file, b"x".to_vec()).await;
    assert_eq!(again.map_err(kind), Err(ErrorKind::AlreadyExists));
    assert_eq!(disk.create_directory(&file).await.map_err(kind), Err(ErrorKind::AlreadyExists));
    assert_eq!(disk.list(&file).await.map_err(kind), Err(ErrorKind::NotADirectory));
    assert_eq!(disk.list(&root).await.expect("it"), [entry("d", EntryKind::Directory)]);
    assert_eq!(disk.length(&directory).await.map_err(kind), Err(ErrorKind::IsADirectory));

    assert_eq!(disk.read(&file, 2, 3).await.expect("a file"), b"234");
    assert_eq!(disk.read(&file, 8, 9).await.expect("a file"), b"89");
    assert_eq!(disk.read(&file, 99, 9).await.expect("a file"), b"");
    assert_eq!(disk.append(&file, b"ab".to_vec()).await.expect("a file"), 12);
    disk.overwrite(&file, 1, b"xy".to_vec()).await.expect("a file");
    disk.truncate(&file, 11).await.expect("a file");
    assert_eq!(disk.length(&file).await.expect("a file"), Some(11));
    assert_eq!(disk.read(&file, 0, 99).await.expect("a file"), b"0xy3456789a");
    disk.truncate(&file, 13).await.expect("a file");
    assert_eq!(disk.read(&file, 10, 99).await.expect("a file"), b"a\0\0");

    disk.link(&file, &other).await.expect("a second name");
    assert_eq!(disk.link(&file, &other).await.map_err(kind), Err(ErrorKind::AlreadyExists));
    assert_eq!(disk.link(&missing, &other).await.map_err(kind), Err(ErrorKind::NotFound));
    disk.truncate(&other, 1).await.expect("the same file");
    assert_eq!(disk.length(&file).await.expect("a file"), Some(1));
    disk.remove(&file).await.expect("a name");
    assert_eq!(disk.remove(&file).await.map_err(kind), Err(ErrorKind::NotFound));
    assert_eq!(disk.read(&other, 0, 9).await.expect("a file"), b"0");
    assert_eq!(disk.list(&directory).await.expect("it"), [entry("g", EntryKind::File)]);
    disk.sync(&other).await.expect("a file");

    leases_conform(disk).await;
    for directory in [&directory, &root] {
        disk.sync_directory(directory).await.expect("a directory");
    }
}

async fn leases_conform(disk: &dyn Disk) {
    let root = DiskPath::root();
    let kind = |error: std::io::Error| error.kind();
    let lease = disk.lease(&root.child("lease")).await.expect("an answer").expect("it is free");
    assert!(disk.lease(&root.child("lease")).await.expect("an answer").is_none());
    assert_eq!(lease.fence(), 1);
    drop(lease);
    for fence in 2..12 {
        let lease = disk.lease(&root.child("lease")).await.expect("an answer");
        assert_eq!(lease.expect("it is free").fence(), fence);
    }
    let text = b"00000000000000000011\n00000000000000000010\n";
    assert_eq!(disk.read(&root.child("lease"), 0, 99).await.expect("a file"), text);
    for (contents, unusable) in [("", false), ("hello", true), ("0000\0", false)] {
        let other = root.child("other");
        drop(disk.remove(&other).await);
        disk.write_new(&other, contents.as_bytes().to_vec()).await.expect("a file");
        match disk.lease(&other).await.map_err(kind) {
            Ok(lease) => assert_eq!((lease.expect("it is free").fence(), unusable), (1, false)),
            Err(error) => assert_eq!((error, unusable), (ErrorKind::InvalidData, true)),
        }
        let left = disk.read(&other, 0, 99).await.expect("a file");
        assert_eq!(left == contents.as_bytes(), unusable, "nothing is written over {contents:?}");
    }
}

#[tokio::test]
async fn a_real_directory_is_a_disk() {
    let root = tempfile::tempdir().expect("a temporary directory");
    conforms(&StdDisk::new(root.path().join("not").join("there").join("yet"))).await;
}

#[tokio::test]
async fn the_simulated_disk_is_a_disk() {
    conforms(&SimDisk::new()).await;
}
